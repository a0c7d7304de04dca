"""Log files of the supervised processes: appended to, bounded, and quoted when something fails."""

import contextlib
import os
import shutil
from pathlib import Path

LIMIT_BYTES = 10 * 1024 * 1024
KEPT = 2


def open_log(path: Path) -> int:
    """File descriptor to append to; append mode is what lets `rotate` shorten the file under a running writer."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def rotate(path: Path, limit_bytes: int = LIMIT_BYTES, kept: int = KEPT) -> None:
    """Copy a log that grew past the limit to ``NAME.1`` and empty it; older copies move up, the oldest goes."""
    with contextlib.suppress(OSError):  # a full disk must not stop the stack
        if path.stat().st_size <= limit_bytes:
            return
        for number in range(kept, 1, -1):
            older = path.with_name(f"{path.name}.{number - 1}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number}"))
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)


def read_from(path: Path, offset: int) -> str:
    """What was written since ``offset``, at most the last 64 KiB."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(offset if offset <= end else 0, end - 65536))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(path: Path, offset: int = 0, count: int = 3) -> str:
    """The last lines that say something, joined for one line on a terminal."""
    lines = [line.strip() for line in read_from(path, offset).splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "it wrote nothing"
