"""The first file anybody runs: readable to old Pythons, and one clear line for each thing that is wrong."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from installer import checks, environment
from installer.checks import InstallError
from installer.main import split
from installer.progress import Progress
from tests.structure.sources import ROOT

OLD_PYTHONS = ("python2.7", "python3.6", "python3.7", "python3.8", "python3.9", "python3.10")


def test_bootstrap_is_old_syntax() -> None:
    """Nothing newer than Python 3.4, and nothing Python 2.7 lacks: annotations, keyword-only arguments, f-strings."""
    tree = ast.parse((ROOT / "bootstrap.py").read_text(), feature_version=(3, 4))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.JoinedStr | ast.AnnAssign | ast.AsyncFunctionDef | ast.Nonlocal | ast.Starred)
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None and not node.args.kwonlyargs
            assert all(argument.annotation is None for argument in node.args.args)


def _find(name: str) -> str | None:
    """A real interpreter of that version, on PATH or among pyenv's; its shims on PATH may only complain."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{name.removeprefix('python')}.*/bin/python"))
    for candidate in [shutil.which(name), *map(str, kept)]:
        if candidate:
            asked = [candidate, "-c", "import sys; print(sys.executable)"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout.strip()
    return None


@pytest.mark.parametrize("name", OLD_PYTHONS)
def test_an_old_python_says_one_line(name: str, tmp_path: Path) -> None:
    python = _find(name)
    if python is None:
        pytest.skip(f"no {name} here")
    environ = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([python, "bootstrap.py"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"Python 3.11 or newer is needed; this is Python {name.removeprefix('python')}" in done.stderr


@pytest.mark.parametrize(
    ("argv", "dev", "port", "command"),
    [
        ([], False, None, []),
        (["--dev", "-m", "pytest", "-q", "--dev"], True, None, ["-m", "pytest", "-q", "--dev"]),
        (["--need-port", "8001", "manage.py", "up"], False, 8001, ["manage.py", "up"]),
    ],
)
def test_own_options_come_first_and_the_rest_is_the_command(
    argv: list[str], dev: bool, port: int | None, command: list[str]
) -> None:
    options, rest = split(argv)
    assert (options.dev, options.need_port, rest) == (dev, port, command)


@pytest.mark.parametrize("text", ["abc", "0", "65536", "99999", "²", "8_0"])
def test_what_is_no_port_is_refused_in_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        split(["--need-port", text, "manage.py", "up"])
    assert f"argument --need-port: {text!r} is no port; give 1 to 65535" in capsys.readouterr().err


def test_unknown_flavour_is_named() -> None:
    with pytest.raises(InstallError, match="HEADWAY_FLAVOUR=rocm: choose one of cpu, cuda"):
        environment.chosen({"HEADWAY_FLAVOUR": "rocm"})


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InstallError, match=r"cannot write in .*; clone Headway into a folder of your own"):
        checks.require_writable(tmp_path / "file" / "below")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checks.FREE_BYTES_NEEDED, "cpu", 2**60)
    with pytest.raises(InstallError, match=r"^disk full: [\d.]+ GB free for .*, the cpu environment needs"):
        checks.require_space(tmp_path, "cpu")


def _environment(root: Path) -> environment.Environment:
    (root / "requirements").mkdir()
    (root / "requirements" / "cpu.txt").write_text("no-such-package==1.0\n")
    (root / "requirements" / "dev.txt").write_text("pytest==0\n")
    (root / "pyproject.toml").write_text("[project]\n")
    return environment.Environment(root, "cpu")


def test_a_failed_installation_says_pip_s_last_error_and_leaves_nothing_that_counts(tmp_path: Path) -> None:
    wanted = _environment(tmp_path)
    environ = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    code = (
        "import pathlib, sys; from installer import environment as e\n"
        "try: e.ensure(e.Environment(pathlib.Path(sys.argv[1]), 'cpu'), dev=False, port=None)\n"
        "except e.InstallError as error: print('FAILED', error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    assert last.startswith("FAILED installation failed: No matching distribution found for no-such-package==1.0"), done
    assert "install.log" in last
    assert not wanted.complete(dev=False)
    assert not (tmp_path / ".venv").exists()


def test_a_complete_environment_is_reused_and_shown(tmp_path: Path) -> None:
    wanted = _environment(tmp_path)
    wanted.folder.mkdir(parents=True)
    wanted.marker.touch()
    wanted.project_marker.touch()
    environment.ensure(wanted, dev=False, port=None)
    assert (tmp_path / ".venv").resolve() == wanted.folder
    assert not wanted.complete(dev=True)
    (tmp_path / "newpackage").mkdir()
    (tmp_path / "newpackage" / "__init__.py").touch()  # must be linked in too
    assert not wanted.complete(dev=False)
    (tmp_path / "newpackage" / "__init__.py").unlink()
    assert wanted.complete(dev=False)
    wanted.lock.write_text("no-such-package==2.0\n")  # another lock, another environment
    assert not wanted.complete(dev=False)


def test_a_folder_named_venv_that_is_somebody_s_own_stays(tmp_path: Path) -> None:
    wanted = _environment(tmp_path)
    (tmp_path / ".venv").mkdir()
    wanted.folder.mkdir(parents=True)
    wanted.marker.touch()
    wanted.project_marker.touch()
    environment.ensure(wanted, dev=False, port=None)
    assert not (tmp_path / ".venv").is_symlink()


def test_progress_condenses_pip_and_explains_failure(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(2, warn_of_cuda=True)
    for line in (
        "Collecting numpy==2.4.6 (from -r cpu.txt (line 3))",
        "  Downloading numpy-2.4.6.whl (18 MB)",
        "Collecting torch==2.13.0",
        "Collecting nvidia-cublas (from torch)",
        "WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError'",
        "ERROR: No matching distribution found for torch==2.13.0",
    ):
        progress.read(line)
    shown = capsys.readouterr().out
    assert "1/2 numpy 2.4.6" in shown and "2/2 torch 2.13.0" in shown and "Downloading" not in shown
    assert "note: this index serves the CUDA build" in shown
    assert progress.failure() == (
        "the package index cannot be reached: No matching distribution found for torch==2.13.0"
    )
