"""``make lock``: compile ``requirements/*.in`` into fully pinned locks that name no index, host or local path."""

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "requirements"
OPTIONS = (
    "--quiet",
    "--no-header",
    "--strip-extras",
    "--allow-unsafe",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-trusted-host",
    "--no-emit-options",
)
_LOCAL_VERSION = re.compile(r"^([a-z0-9-]+==[^+\s]+)\+\S+", re.MULTILINE)


def main() -> int:
    """The cuda lock is resolved against the plain index alone: a CPU wheel that pip is told of elsewhere would win."""
    plain = {**os.environ, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull}
    for flavour, environ in (("cpu", dict(os.environ)), ("dev", dict(os.environ)), ("cuda", plain)):
        argv = [sys.executable, "-m", "piptools", "compile", *OPTIONS, "-o", f"{flavour}.txt", f"{flavour}.in"]
        if subprocess.run(argv, cwd=FOLDER, env=environ, check=False).returncode:
            return 1
        lock = FOLDER / f"{flavour}.txt"
        lock.write_text(_LOCAL_VERSION.sub(r"\1", lock.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
