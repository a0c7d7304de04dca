"""Run every benchmark in quick mode and print one JSON object a line: ``python -m bench``."""

import subprocess
import sys
from pathlib import Path

from bench.harness import say

HERE = Path(__file__).parent
NOT_BENCHMARKS = {"__init__", "__main__", "harness"}


def names() -> list[str]:
    """Benchmarks there are, in alphabetical order."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def main() -> int:
    """Exit status 1 when any benchmark failed; the others still run."""
    failed = []
    for name in names():
        say(f"bench.{name} ...")
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{name}", "--quick", "--json"], cwd=HERE.parent, check=False
        )
        if done.returncode:
            failed.append(name)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
