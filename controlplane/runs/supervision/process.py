"""The process group of one run as its worker sees it: lines of standard output in, stop and kill out."""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from controlplane.embedded.guardian import register_group, unregister_group

LAUNCHER = Path(__file__).with_name("launcher.py")
LINE_LIMIT = 16 * 1024 * 1024
BACKLOG = 10_000  # lines read ahead; beyond, the run waits
LOG_TAIL = 8_000
EXIT_WAIT_S = 5.0
# What a run has no business knowing.
SECRETS = ("SECRET_KEY", "DATABASE_URL", "REDIS_URL")


class RunProcess:
    """A spawned run in a session and process group of its own, which dies with this process.

    Must be made by the thread that outlives it. Not for reuse.
    """

    def __init__(self, command: Sequence[str], *, log: Path, cwd: Path, grace_s: float) -> None:
        self._log = log
        self._lines: queue.Queue[bytes | None] = queue.Queue(BACKLOG)
        self._socket, theirs = socket.socketpair()
        with theirs, log.open("wb") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LAUNCHER), str(grace_s), *command],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=cwd,
                env=_environment(),
                start_new_session=True,
            )
        register_group(self._popen.pid)
        assert self._popen.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._popen.stdout,), name="run-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Leader of the group, which is also the group's number."""
        return self._popen.pid

    def next_line(self, timeout_s: float) -> bytes | None:
        """The next line, ``b""`` when none came in time, None at the end of the output."""
        try:
            return self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return b""

    def ended(self) -> bool:
        """Whether the group's leader is gone, and with it the group."""
        return self._popen.poll() is not None

    def terminate(self) -> None:
        """Ask every process of the group to stop."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End every process of the group."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)

    def close(self) -> int:
        """End what is left and clean up; the command's exit status, negative for a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(EXIT_WAIT_S)
        self.kill()
        self._popen.wait()
        unregister_group(self._popen.pid)
        with self._socket:
            self._socket.settimeout(1.0)
            status = b""
            with contextlib.suppress(OSError):
                status = self._socket.recv(32)
        return int(status) if status.strip() else int(self._popen.returncode)

    def log_tail(self) -> str:
        """The end of the run's standard error."""
        try:
            with self._log.open("rb") as stream:
                stream.seek(max(0, self._log.stat().st_size - LOG_TAIL))
                return stream.read().decode(errors="replace")
        except OSError:
            return ""

    def _signal(self, number: int) -> None:
        # Only while the leader is not yet reaped: afterwards its number may belong to somebody else.
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, number)

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(LINE_LIMIT):
                self._lines.put(line)
        self._lines.put(None)


def _environment() -> dict[str, str]:
    hidden = {*SECRETS, *(f"{name}_FILE" for name in SECRETS)}
    return {name: value for name, value in os.environ.items() if name not in hidden} | {"PYTHONUNBUFFERED": "1"}
