"""A policy of an installed package: written by the command, found by its entry point, checked in one command."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headway.authoring import rendered, write_package
from scheduler_core.types.errors import InputError

ROOT = Path(__file__).parents[2]


def installed(package: Path, site: Path) -> dict[str, str]:
    """The environment of a process that has ``package`` installed.

    A distribution is what importlib.metadata finds on the path: a module beside its metadata, which a build makes of
    the project's file.
    """
    project = tomllib.loads((package / "pyproject.toml").read_text())
    name, modules = project["project"]["name"], project["tool"]["setuptools"]["py-modules"]
    for module in modules:
        (site / f"{module}.py").write_text((package / f"{module}.py").read_text())
    metadata = site / f"{name}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    lines = []
    for group, entries in project["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}


def run(environment: dict[str, str], *command: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        timeout=110,
    )  # fmt: skip


def test_a_new_package_is_found_and_conforms_in_one_command(tmp_path: Path) -> None:
    package = write_package("short_first", tmp_path)
    assert sorted(path.name for path in package.iterdir()) == [
        "README.md",
        "pyproject.toml",
        "short_first.py",
        "test_short_first.py",
    ]
    environment = installed(package, tmp_path)
    checked = run(environment, "headway", "policy", "check", "short_first")
    assert (checked.returncode, checked.stdout.strip()) == (0, "short_first: conforms"), checked.stderr
    tested = run(environment, "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(package), str(package))
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr


def test_a_part_that_breaks_a_rule_does_not_conform(tmp_path: Path) -> None:
    """An order that depends on how often it is asked: two runs differ, and fast-forward from both."""
    package = write_package("moody", tmp_path)
    module = package / "moody.py"
    text = module.read_text()
    assert text.count("return (request.spec.prompt_tokens,)") == 1
    broken = text.replace("return (request.spec.prompt_tokens,)", "return (next(_MOODS) * 7 % 31,)")
    module.write_text(broken.replace("from dataclasses", "from itertools import count\nfrom dataclasses", 1).replace(
        "@dataclass", "_MOODS = count()\n\n\n@dataclass", 1
    ))  # fmt: skip
    checked = run(installed(package, tmp_path), "headway", "policy", "check", "moody")
    assert checked.returncode == 1, checked.stderr
    assert "moody: does not conform" in checked.stdout
    assert "runs_repeat_exactly: two runs differ" in checked.stdout


def test_the_page_shows_what_the_command_writes() -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert code == rendered("policy.py.txt", "shortest_prompt")
    (entry,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    assert entry in rendered("pyproject.toml.txt", "shortest_prompt")


@pytest.mark.parametrize(
    ("name", "message"),
    [("Short-First", "cannot name a module"), ("class", "cannot name a module"), ("vtc", "exists already")],
)
def test_a_name_that_cannot_be_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        write_package(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path: Path) -> None:
    write_package("short_first", tmp_path)
    with pytest.raises(InputError, match="cannot be made"):
        write_package("short_first", tmp_path)
