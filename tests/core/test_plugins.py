"""A policy of an installed package: the page's example, found by its entry point and checked in one command."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_page_conforms_when_it_is_installed(tmp_path: Path) -> None:
    """A distribution is what importlib.metadata finds on the path: a module beside its metadata."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "policies.md").read_text(), flags=re.DOTALL)
    (tmp_path / "our_policies.py").write_text(code)
    metadata = tmp_path / "our_policies-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: our-policies\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[headway.policies]\nshortest_prompt = our_policies:SHORTEST_PROMPT\n")
    done = subprocess.run(
        [sys.executable, "-m", "scheduler_core.testing.conformance", "shortest_prompt"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "shortest_prompt: conforms"), done.stderr
