"""What every process that does a job shares: its job file, its messages, its log, and when it has to stop.

The protocol is described in `scheduler_core.spec.job`.
"""

import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Literal

from scheduler_core.spec.job import Message, ResultMessage
from scheduler_core.spec.parse import SpecT, parse
from scheduler_core.types.errors import InputError

Emit = Callable[[Message], None]


def emit(message: Message) -> None:
    """One line of JSON on standard output, at once."""
    sys.stdout.write(message.model_dump_json() + "\n")
    sys.stdout.flush()


def log_to_stderr() -> None:
    """Send the log to standard error; standard output is for messages."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def read_job(kind: type[SpecT], path: Path) -> SpecT | None:
    """The job that a file describes; None when it cannot be used, after a result that says why."""
    try:
        return parse(kind, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, InputError) as error:
        emit(ResultMessage(outcome="failed", reason=f"the job file cannot be used: {error}"))
        return None


def told(result: ResultMessage) -> int:
    """Tell the result, the last message; the exit status that goes with it."""
    emit(result)
    return 0 if result.outcome == "succeeded" else 1


class AskedToStop:
    """True from the first SIGTERM or SIGINT on; make it in the main thread."""

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def __call__(self) -> bool:
        return self._asked


class Deadline:
    """True when asked to stop, or when ``limit_s`` seconds have passed since it was made; remembers which."""

    def __init__(self, stop: Callable[[], bool], limit_s: float) -> None:
        self._stop = stop
        self._limit_s = limit_s
        self._ends_at = time.monotonic() + limit_s
        self.reason = ""
        self.outcome: Literal["cancelled", "failed"] = "cancelled"

    def __call__(self) -> bool:
        if self._stop():
            self.reason = "cancelled on request"
        elif time.monotonic() > self._ends_at:
            self.reason = f"stopped: it took longer than its limit of {self._limit_s:g} s"
            self.outcome = "failed"
        return bool(self.reason)
