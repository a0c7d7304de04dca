"""The home folder of the embedded stack: made, checked, locked, and cleared of what a crash left behind."""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from controlplane.embedded import guardian

MINIMUM_FREE_BYTES = 512 * 1024 * 1024


class StartError(Exception):
    """Why the stack cannot start or go on, as one line for the person at the terminal."""


@dataclass(frozen=True)
class Home:
    """Paths of one stack. ``run`` is the folder of this supervisor alone; the rest outlives it."""

    root: Path
    run: Path
    scratch: Path
    storage: Path

    @property
    def logs(self) -> Path:
        """Log files, one per process."""
        return self.root / "logs"

    @property
    def valkey(self) -> Path:
        """Append-only files of the queue server."""
        return self.root / "valkey"

    @property
    def secret_key(self) -> Path:
        """Django's secret key, readable by its owner only."""
        return self.root / "secret_key"

    @property
    def registry(self) -> Path:
        """Process groups the guardian watches."""
        return self.run / "groups"

    @property
    def fifo(self) -> Path:
        """Where the guardian listens."""
        return self.run / "guardian"


def locate(environ: dict[str, str], default: Path) -> Home:
    """The home that ``environ`` names by ``HEADWAY_HOME``, ``HEADWAY_SCRATCH`` and ``HEADWAY_STORAGE``."""
    root = Path(environ.get("HEADWAY_HOME") or default).expanduser().resolve()
    return Home(
        root=root,
        run=root / "run" / f"{os.getpid()}-{time.time_ns()}",
        scratch=Path(environ.get("HEADWAY_SCRATCH") or root / "scratch"),
        storage=Path(environ.get("HEADWAY_STORAGE") or root / "storage"),
    )


class Lock:
    """Held by the one supervisor of a home; the system releases it however that supervisor ends."""

    def __init__(self, home: Home) -> None:
        self._path = home.root / "lock"
        self._handle: int | None = None

    def take(self, note: str) -> None:
        """Take it, leaving ``note`` for whoever comes second; raises `StartError` when another supervisor holds it."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 200).decode(errors="replace").strip()
            os.close(handle)
            raise StartError(
                f"Headway already runs in {self._path.parent} ({holder}); stop it first, or set HEADWAY_HOME"
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"{note}\n".encode())
        self._handle = handle

    def release(self) -> None:
        """Give it back."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def last_address(root: Path) -> str | None:
    """Where the supervisor of this home serves, or last served; None where none has started yet."""
    try:
        note = (root / "lock").read_text(encoding="utf-8")
    except OSError:
        return None
    return note.strip().rpartition(", ")[2] or None


def make(home: Home, minimum_free_bytes: int = MINIMUM_FREE_BYTES) -> None:
    """Make the folders; raises `StartError` when one cannot be written or the disk is nearly full."""
    for folder in (home.root, home.logs, home.valkey, home.scratch, home.storage):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = folder / f".probe-{os.getpid()}"
            probe.write_bytes(b"x" * 4096)
            probe.unlink()
        except OSError as error:
            raise StartError(_cannot_write(folder, error)) from None
    for folder in (home.root, home.scratch, home.storage):
        free = shutil.disk_usage(folder).free
        if free < minimum_free_bytes:
            raise StartError(
                f"disk full: {free // 2**20} MiB free for {folder}, {minimum_free_bytes // 2**20} MiB are needed"
            )


def _cannot_write(folder: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"disk full: cannot write in {folder}"
    return f"cannot write in {folder}: {error.strerror}; set HEADWAY_HOME to a folder of your own"


def recover(home: Home, *, own_scratch: bool) -> int:
    """End what an earlier supervisor left running and remove what it left half-written; returns the groups ended.

    Call it with the lock held. ``own_scratch``: the scratch folder is the home's own, so that everything in it belongs
    to runs that ended with their supervisor.
    """
    left: dict[int, str] = {}
    earlier = sorted((home.root / "run").glob("*")) if (home.root / "run").is_dir() else []
    for folder in earlier:
        left |= guardian.read_registry(folder / home.registry.name)
    alive = {pgid: started for pgid, started in left.items() if guardian.signal_group(pgid, started, 0)}
    guardian.end_groups(alive)
    for folder in earlier:
        shutil.rmtree(folder, ignore_errors=True)
    if own_scratch:
        for leftover in home.scratch.iterdir():
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)
    home.run.mkdir(mode=0o700, parents=True)
    return len(alive)


def clear(home: Home) -> None:
    """Remove the folder of this supervisor after an orderly stop."""
    shutil.rmtree(home.run, ignore_errors=True)
    with contextlib.suppress(OSError):
        home.run.parent.rmdir()


def keep_secret_key(home: Home) -> None:
    """Make Django's secret key once."""
    if home.secret_key.exists() and home.secret_key.read_text().strip():
        return
    write_private(home.secret_key, secrets.token_urlsafe(50))


def write_private(path: Path, content: str) -> None:
    """Write ``content`` whole or not at all, readable by the owner only."""
    fresh = path.with_name(f".{path.name}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
