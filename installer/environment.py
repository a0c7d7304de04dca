"""The environment: built whole under a name stamped with its lock's hash, then made visible as ``.venv``.

An environment cannot be moved once built (its scripts name their interpreter), so it is built where it stays, in
``.venvs/FLAVOUR-VERSION-HASH``; it counts only when its marker file is there, and ``.venv`` is a link that is switched
in one step. What an interrupted installation left is removed by the next one.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from installer import checks
from installer.checks import InstallError
from installer.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
FLAVOURS = ("cpu", "cuda")
SIZES = {"cpu": "about 1.5 GB", "cuda": "about 5.5 GB"}


@dataclass(frozen=True)
class Environment:
    """Where one flavour's environment lies, for one version of Python and one state of its lock."""

    root: Path
    flavour: str

    @property
    def lock(self) -> Path:
        """Every package with its version."""
        return self.root / "requirements" / f"{self.flavour}.txt"

    @property
    def dev_lock(self) -> Path:
        """What tests and checks need besides."""
        return self.root / "requirements" / "dev.txt"

    @property
    def folder(self) -> Path:
        """The environment itself."""
        version = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
        return self.root / ".venvs" / f"{self.flavour}-{version}-{digest(self.lock)}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def marker(self) -> Path:
        """There when the environment is whole."""
        return self.folder / ".complete"

    @property
    def project_marker(self) -> Path:
        """There when Headway itself, as its project file and packages are now, is linked into it."""
        packages = sorted(path.parent.name for path in self.root.glob("*/__init__.py"))
        return self.folder / f".complete-project-{digest(self.root / 'pyproject.toml', *packages)}"

    @property
    def dev_marker(self) -> Path:
        """There when the tools of this state of the dev lock are in it too."""
        return self.folder / f".complete-dev-{digest(self.dev_lock)}"

    def complete(self, *, dev: bool) -> bool:
        """Whether nothing is left to install."""
        needed = [self.marker, self.project_marker, *([self.dev_marker] if dev else [])]
        return all(marker.exists() for marker in needed)


def digest(file: Path, *words: str) -> str:
    """Short hash of a file and some words."""
    return hashlib.sha256(file.read_bytes() + "\n".join(words).encode()).hexdigest()[:12]


def chosen(environ: dict[str, str]) -> Environment:
    """The environment of ``HEADWAY_FLAVOUR`` (default ``cpu``)."""
    flavour = environ.get("HEADWAY_FLAVOUR") or "cpu"
    if flavour not in FLAVOURS:
        raise InstallError(f"HEADWAY_FLAVOUR={flavour}: choose one of {', '.join(FLAVOURS)}")
    return Environment(ROOT, flavour)


def ensure(environment: Environment, *, dev: bool, port: int | None) -> None:
    """Build or complete the environment when needed; raises `InstallError` with one line why it cannot."""
    if environment.complete(dev=dev):
        show(environment)
        return
    checks.require_venv()
    checks.require_writable(environment.root / ".venvs")
    if port is not None:
        checks.require_port(port)
    with exclusive(environment.root / ".venvs" / "lock"):
        if not environment.marker.exists():
            checks.require_space(environment.root, environment.flavour)
            build(environment)
        if not environment.project_marker.exists():
            print("Linking this checkout into its environment", flush=True)
            run_pip(environment, ["--no-deps", "--no-build-isolation", "--editable", str(environment.root)], packages=1)
            environment.project_marker.touch()
        if dev and not environment.dev_marker.exists():
            print("Adding test tools", flush=True)
            install(environment, environment.dev_lock)
            environment.dev_marker.touch()
    show(environment)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Only one installation at a time in a checkout; a second one waits and then finds the work done."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 32).decode(errors="replace").strip()
            print(f"Waiting for another installation in this checkout (process {holder}) ...", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def build(environment: Environment) -> None:
    """Make the environment from nothing."""
    folder = environment.folder
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"Installing Headway's {environment.flavour} environment ({SIZES[environment.flavour]}, once)", flush=True)
    print(f"  Python {version} ({sys.executable}) -> {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True, check=False)
    if made.returncode:
        last = (made.stderr or made.stdout).strip().splitlines()[-1:] or ["no reason given"]
        raise InstallError(f"the environment could not be made: {last[0]}")
    install(environment, environment.lock)
    environment.marker.touch()


def install(environment: Environment, lock: Path) -> None:
    """Install every line of a lock."""
    lines = [line for line in lock.read_text().splitlines() if "==" in line and not line.lstrip().startswith("#")]
    run_pip(environment, ["--requirement", str(lock)], packages=len(lines))


def run_pip(environment: Environment, arguments: list[str], packages: int) -> None:
    """Run ``pip install``, show its progress, keep its whole output in ``.venvs/install.log``."""
    log = environment.root / ".venvs" / "install.log"
    argv = [str(environment.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    argv += ["--progress-bar", "off", "--retries", "2", *arguments]
    progress = Progress(packages, warn_of_cuda=environment.flavour == "cpu")
    with (
        log.open("a", encoding="utf-8") as kept,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            kept.write(line)
            progress.read(line)
    if pip.returncode:
        progress.end_line()
        raise InstallError(f"installation failed: {progress.failure()} (all of it: {log})")
    progress.show("done")
    progress.end_line()


def show(environment: Environment) -> None:
    """Point ``.venv`` at the environment, in one step; a folder of that name that is somebody's own stays."""
    link = environment.root / ".venv"
    target = Path(".venvs") / environment.folder.name
    if link.is_symlink() and link.readlink() == target:
        return
    if link.exists() and not link.is_symlink():
        return
    fresh = environment.root / f".venv-link-{os.getpid()}"
    fresh.symlink_to(target)
    fresh.replace(link)
