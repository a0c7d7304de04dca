"""The processes of a running stack, as the system knows them."""

import contextlib
from pathlib import Path

from tests.stack.conftest import Stack


def command_line(pid: int) -> list[str]:
    """Words of a process's command line; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def processes() -> dict[int, tuple[int, int]]:
    """Parent and process group of every process that is no zombie."""
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit():
                state, parent, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
                if state != "Z":
                    found[int(folder.name)] = (int(parent), int(group))
    return found


def group_of(stack: Stack, word: str) -> int:
    """The registered process group whose leader's command line has ``word``."""
    (pgid,) = (pgid for pgid in stack.registered() if any(word in part for part in command_line(pgid)))
    return pgid


def members(pgid: int) -> list[int]:
    """Processes of a group."""
    return [pid for pid, (_, group) in processes().items() if group == pgid]


def of_home(home: Path) -> list[int]:
    """Processes, whoever started them, whose environment names ``home`` (the queue server overwrites its own)."""
    found = []
    for pid in processes():
        with contextlib.suppress(OSError):
            if f"HEADWAY_HOME={home}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def alive(pids: list[int]) -> list[int]:
    """Those of ``pids`` that have not ended."""
    return [pid for pid in pids if pid in processes()]


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    found = Path(f"/proc/{pid}/environ").read_bytes().decode().rstrip("\0")
    return dict(item.split("=", 1) for item in found.split("\0"))
