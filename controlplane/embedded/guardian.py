"""The guardian: a tiny process that outlives a killed supervisor just long enough to end what it left running.

It runs in a session of its own, ignores the terminal's signals, and knows process groups by lines ``+PGID START`` and
``-PGID`` that arrive on a FIFO (named by the environment variable ``HEADWAY_GUARDIAN``). Its standard input is a pipe
that only the supervisor holds: end of file means the supervisor is gone, and every registered group is sent SIGTERM
and, 8 s later, SIGKILL. The groups are also kept in a file, so that a restarted guardian or the next start of the
stack still knows them. ``START`` is the leader's start time: a process that merely got the same number later is never
signalled.

Standard library only: worker tasks import `register_group` and `unregister_group` from here. Outside the embedded
stack both do nothing.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "HEADWAY_GUARDIAN"
TERMINATE_GRACE_S = 8.0


def register_group(pgid: int) -> None:
    """Have the guardian end process group ``pgid`` should the stack die; call it right after starting the group."""
    _tell(f"+{pgid} {start_time(pgid) or '?'}\n")


def unregister_group(pgid: int) -> None:
    """Forget process group ``pgid``; call it when the group has ended."""
    _tell(f"-{pgid}\n")


def _tell(line: str) -> None:
    fifo = os.environ.get(VARIABLE)
    if not fifo:
        return
    # Without a reader (the guardian is being restarted) the open fails; the registry file and the parent-death signal
    # still cover the group.
    with contextlib.suppress(OSError):
        handle = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(handle, line.encode())  # shorter than PIPE_BUF, so never mixed with another writer's line
        finally:
            os.close(handle)


def start_time(pid: int) -> str | None:
    """When process ``pid`` started, in a form that only compares equal for the same process; None when it is gone."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            text = stat.read_text()
        except OSError:
            return None
        fields = text[text.rindex(")") + 2 :].split()
        return None if fields[0] == "Z" else fields[19]  # a zombie is gone; field 22 of stat(5) is the start time
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip().replace(" ", "_") or None


def group_exists(pgid: int) -> bool:
    """Whether any process, zombies included, is in the group."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_group(pgid: int, started: str, number: int) -> bool:
    """Signal a registered group unless its number now belongs to another process; False when there is nothing left."""
    now = start_time(pgid)
    if pgid <= 1 or (now is not None and started not in ("?", now)):
        return False
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_groups(groups: dict[int, str], grace_s: float = TERMINATE_GRACE_S) -> None:
    """SIGTERM to every group, then SIGKILL to those that are still there after ``grace_s`` seconds."""
    left = {pgid: started for pgid, started in groups.items() if signal_group(pgid, started, signal.SIGTERM)}
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = {pgid: started for pgid, started in left.items() if signal_group(pgid, started, 0)}
    for pgid, started in left.items():
        signal_group(pgid, started, signal.SIGKILL)


def read_registry(path: Path) -> dict[int, str]:
    """Groups that a registry file names; damaged lines (a torn write) are skipped."""
    groups: dict[int, str] = {}
    try:
        content = path.read_text()
    except OSError:
        return groups
    for line in content.splitlines():
        pgid, _, started = line.partition(" ")
        if pgid.isdigit() and started:
            groups[int(pgid)] = started
    return groups


def _write_registry(path: Path, groups: dict[int, str]) -> None:
    fresh = path.with_suffix(".new")
    with contextlib.suppress(OSError):  # a full disk must not end the guardian
        fresh.write_text("".join(f"{pgid} {started}\n" for pgid, started in groups.items()))
        fresh.replace(path)


def _apply(line: str, groups: dict[int, str]) -> None:
    sign, rest = line[:1], line[1:].split()
    if not rest or not rest[0].isdigit():
        return
    if sign == "+":
        groups[int(rest[0])] = rest[1] if len(rest) > 1 else "?"
    elif sign == "-":
        groups.pop(int(rest[0]), None)


def watch(fifo: Path, registry: Path) -> None:
    """Serve until the supervisor's pipe on standard input ends, then end every registered group."""
    groups = read_registry(registry)
    handle = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # read-write, so that it never reports end of file itself
    pending = ""
    os.write(sys.stdout.fileno(), b"ready\n")
    while True:
        ready, _, _ = select.select([handle, sys.stdin.fileno()], [], [])
        if handle in ready:
            pending += os.read(handle, 65536).decode(errors="replace")
            *complete, pending = pending.split("\n")
            for line in complete:
                _apply(line, groups)
            _write_registry(registry, groups)
        elif sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
            break
    end_groups(groups)
    _write_registry(registry, {})


def main() -> None:
    """``python -m controlplane.embedded.guardian FIFO REGISTRY``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
