"""The tree names no machine and no registry, and its parts agree about versions."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.structure.sources import ROOT

# Put together here, so that this file does not contain what it looks for.
MACHINE_PATHS = ["/" + "work/", "/" + "root/", "/opt/" + "wheels", "/opt/" + "pypi", "/home/" + "user"]
REGISTRY_HOSTS = ["pypi" + ".org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com", "deb." + "debian.org"]
REGISTRY_HOSTS += ["download." + "pytorch.org", "docker" + ".io"]


def _tracked() -> list[Path]:
    """Files of the repository; outside one (an unpacked archive) there is nothing to ask."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def _texts() -> list[tuple[Path, str]]:
    texts = []
    for path in _tracked():
        try:
            texts.append((path, path.read_text()))
        except UnicodeDecodeError:
            continue
    return texts


@pytest.mark.parametrize("word", MACHINE_PATHS + REGISTRY_HOSTS)
def test_no_machine_path_and_no_registry_host(word: str) -> None:
    assert not [str(path.relative_to(ROOT)) for path, text in _texts() if word in text]


def test_no_third_party_front_end_file_is_committed() -> None:
    """They come from pinned packages."""
    assert not [path for path in _tracked() if path.name.endswith((".min.js", ".min.css", ".woff2", ".woff", ".ttf"))]


def _project() -> dict[str, object]:
    data: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return data


def test_versions_agree() -> None:
    version = _project()["version"]
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == version
    assert f"Headway {version}" in (ROOT / "README.md").read_text()


def test_the_python_floor_is_said_once_everywhere() -> None:
    floor = str(_project()["requires-python"]).removeprefix(">=")
    assert f"Python {floor}" in (ROOT / "README.md").read_text()
    major, minor = floor.split(".")
    assert f"LOWEST = ({major}, {minor})" in (ROOT / "bootstrap.py").read_text()


@pytest.mark.parametrize("flavour", ["cpu", "cuda", "dev"])
def test_locks_pin_every_line(flavour: str) -> None:
    lines = (ROOT / "requirements" / f"{flavour}.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.lstrip().startswith("#")]
    assert wanted
    assert not [line for line in wanted if not re.fullmatch(r"[a-z0-9._-]+==[A-Za-z0-9.]+( ; .*)?", line)]


def test_locks_hold_what_was_asked_for_and_agree() -> None:
    locks = {name: _pins(f"{name}.txt") for name in ("cpu", "cuda", "dev")}
    for name in ("cpu", "cuda"):
        asked = _pins("runtime.in") | _pins(f"{name}.in")
        assert asked.items() <= locks[name].items()
    assert _pins("dev.in").items() <= locks["dev"].items()
    for left, right in (("cpu", "cuda"), ("cpu", "dev")):
        both = locks[left].keys() & locks[right].keys()
        assert {p: locks[left][p] for p in both} == {p: locks[right][p] for p in both}


def _pins(file: str) -> dict[str, str]:
    pairs = re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==(\S+)", (ROOT / "requirements" / file).read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}
