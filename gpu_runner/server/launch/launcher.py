"""A server process of a run's own: started, waited for, watched, and ended with everything it started."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_runner.server.http.loop import run
from gpu_runner.server.http.pool import Origin, Pool
from gpu_runner.server.http.request import NoAnswerError, ask
from scheduler_core.spec.launch import PORT, LaunchTemplate
from scheduler_core.types.errors import InputError, Problem

GUARD = Path(__file__).with_name("guard.py")
GUARD_MARGIN_S = 5.0
LOOK_EVERY_S = 0.25
TAIL_BYTES = 4000


class Launched:
    """A server started here; `close` ends it. ``log`` is its output, kept with the run's other files."""

    def __init__(self, template: LaunchTemplate, flags: Sequence[str], log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.load_ns = 0
        self._template = template
        command = [word.replace(PORT, str(self.port)) for word in template.command]
        self.command = [*command, *(flags if template.policy_flags else ())]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, stop: Callable[[], bool]) -> None:
        """Start it and wait until it is ready; ``load_ns`` is how long that took.

        Raises:
            InputError: it ended first, was not ready in time, or the run was stopped; with the end of its log.
        """
        began = time.monotonic_ns()
        with self.log.open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(GUARD), str(self._template.stop_s), *self.command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._template.env},
                    start_new_session=True,
                )
            except OSError as error:
                raise self._problem(f"{self.command[0]}: {error.strerror or error}") from None
        run(self._ready(stop))
        self.load_ns = time.monotonic_ns() - began

    def ended(self) -> bool:
        """Whether the server is gone."""
        return self._process is None or self._process.poll() is not None

    def tail(self) -> str:
        """The end of its output."""
        with contextlib.suppress(OSError), self.log.open("rb") as stream:
            stream.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            return stream.read().decode(errors="replace")
        return ""

    def close(self) -> None:
        """Ask the whole group to stop, and kill what is left of it after the template's ``stop_s``."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # its guard then ends everything that the server started, itself last
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._template.stop_s + GUARD_MARGIN_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    async def _ready(self, stop: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + self._template.ready_s
        pool = Pool(Origin(self.url))
        try:
            while True:
                if self.ended():
                    status = self._process.returncode if self._process is not None else None
                    raise self._problem(f"the server ended with status {status} before it was ready")
                if stop():
                    raise self._problem("stopped while the server was starting")
                if time.monotonic() > ends_at:
                    raise self._problem(f"the server was not ready within {self._template.ready_s:g} s")
                with contextlib.suppress(NoAnswerError):
                    answer = await ask(pool, "GET", self._template.ready_path, timeout_s=5.0)
                    if answer.status == 200:
                        return
                time.sleep(LOOK_EVERY_S)
        finally:
            pool.close()

    def _problem(self, message: str) -> InputError:
        last = self.tail().strip().splitlines()[-3:]
        shown = f"; its last output: {' | '.join(last)}" if last else ""
        return InputError([Problem("target.server.launch", f"{message}{shown}")])


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
