"""One supervised process: started in a session of its own, watched, restarted, ended with its whole group."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.embedded import logs
from controlplane.embedded.guardian import group_exists
from controlplane.embedded.home import StartError

GIVE_UP_AFTER = 5
GIVE_UP_WITHIN_S = 60.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Program:
    """What to run. ``ready`` is asked, with the log written since the start, until it says yes or ``ready_s`` pass."""

    name: str
    argv: Sequence[str]
    ready: Callable[[str], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 60.0
    stop_s: float = 20.0


def die_with(parent: int) -> None:
    """Make this new process get SIGTERM when its parent dies (Linux), and end at once if it is already gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    *,
    stdout: int | None,
    stderr: int | None = subprocess.STDOUT,
) -> subprocess.Popen[bytes]:
    """Start ``argv`` as the leader of a new session that dies with this process. Call it from the main thread only."""
    parent = os.getpid()
    return subprocess.Popen(
        argv,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        # The death signal follows the thread that forks, so it is the main thread that starts children.
        preexec_fn=lambda: die_with(parent),
    )


def kill_group(pgid: int) -> None:
    """SIGKILL to every process left in the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signal.SIGKILL)


class Child:
    """A `Program` being kept alive."""

    def __init__(self, program: Program, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.program = program
        self.log = log
        self._env = {**env, **program.env}
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0
        self._deaths: deque[float] = deque(maxlen=GIVE_UP_AFTER)

    @property
    def name(self) -> str:
        """Name of its program."""
        return self.program.name

    @property
    def pid(self) -> int | None:
        """Process id, which is also its group's, while it is started."""
        return self._process.pid if self._process else None

    def start(self) -> int:
        """Start it and return its process id."""
        logs.rotate(self.log)
        handle = logs.open_log(self.log)
        try:
            self._log_offset = os.fstat(handle).st_size
            self._process = spawn(self.program.argv, self._env, self._cwd, stdout=handle)
        except OSError as error:
            raise StartError(f"{self.name} could not be started: {error.strerror}") from None
        finally:
            os.close(handle)
        return self._process.pid

    def exit_status(self) -> int | None:
        """Exit status when it has died, else None."""
        return self._process.poll() if self._process else None

    def written(self) -> str:
        """What it logged since it was started."""
        return logs.read_from(self.log, self._log_offset)

    def wait_ready(self, interrupted: Callable[[], bool]) -> None:
        """Return when it answers; raises `StartError` with its last words when it dies or never does."""
        deadline = time.monotonic() + self.program.ready_s
        while not interrupted():
            status = self.exit_status()
            if status is not None:
                raise StartError(f"{self.name} ended with status {status} while starting: {self.last_words()}")
            if self.program.ready(self.written()):
                return
            if time.monotonic() > deadline:
                raise StartError(
                    f"{self.name} did not become ready within {self.program.ready_s:.0f} s: {self.last_words()}"
                )
            time.sleep(0.1)

    def last_words(self) -> str:
        """Last log lines and where to read the rest."""
        return f"{logs.last_lines(self.log, self._log_offset)} (log: {self.log})"

    def note_death(self) -> None:
        """Clear away a dead process's group; raises `StartError` when it keeps dying."""
        if self._process is None:
            return
        kill_group(self._process.pid)
        now = time.monotonic()
        self._deaths.append(now)
        if len(self._deaths) == GIVE_UP_AFTER and now - self._deaths[0] <= GIVE_UP_WITHIN_S:
            raise StartError(f"{self.name} died {GIVE_UP_AFTER} times in {GIVE_UP_WITHIN_S:.0f} s: {self.last_words()}")

    def stop(self, impatient: Callable[[], bool]) -> int | None:
        """SIGTERM, wait, SIGKILL to what is left of its group; returns the exit status, None if it was not running."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        if process.poll() is None:
            process.terminate()
        deadline = time.monotonic() + self.program.stop_s
        while process.poll() is None and time.monotonic() < deadline and not impatient():
            time.sleep(0.05)
        if group_exists(process.pid) or process.poll() is None:
            kill_group(process.pid)
        return process.wait()
