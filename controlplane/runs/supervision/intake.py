"""What a run's messages do to the database and the storage."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
from django.db import DatabaseError, connection

from controlplane.errors import FencedError, QuotaError
from controlplane.evidence.services import append_samples, store_artifact, store_segment
from controlplane.runs.lifecycle import State
from controlplane.runs.services import record_progress, record_state
from controlplane.runs.supervision.process import RunProcess
from controlplane.runs.supervision.workdir import inside
from scheduler_core.spec.job import (
    MESSAGES,
    ArtifactMessage,
    Message,
    ProgressMessage,
    ResultMessage,
    SampleMessage,
    SegmentMessage,
    StateMessage,
)

log = logging.getLogger(__name__)

FLUSH_EVERY_S = 1.0
STORE_TRIES_S = (0.5, 1.0, 2.0, 4.0)


class BadMessageError(Exception):
    """The run said something that is no message."""


class Intake:
    """Takes the messages of one attempt, in a thread of its own so that a slow storage never delays a stop.

    Samples and progress are gathered and written once a second. A database that does not answer is waited for: what
    was gathered stays gathered, and the lease decides how long that may go on.
    """

    def __init__(self, *, run_id: str, attempt: int, folder: Path) -> None:
        self.result: ResultMessage | None = None
        self.fault = ""
        self.fenced = False
        self._id: dict[str, Any] = {"run_id": run_id, "attempt": attempt}
        self._folder = folder
        self._samples: list[tuple[int, dict[str, Any]]] = []
        self._progress: ProgressMessage | None = None
        self._flushed = time.monotonic()
        self._thread: threading.Thread | None = None

    def start(self, process: RunProcess) -> None:
        """Begin to take what ``process`` prints."""
        self._thread = threading.Thread(target=self._follow, args=(process,), name="intake", daemon=True)
        self._thread.start()

    def done(self, timeout_s: float) -> bool:
        """Whether everything printed was taken, or taking ended with ``fault`` or ``fenced``; waits ``timeout_s``."""
        assert self._thread is not None
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _follow(self, process: RunProcess) -> None:
        try:
            while (line := process.next_line(FLUSH_EVERY_S / 4)) is not None:
                if line:
                    self.take(line)
                self.flush()
            self.flush(now=True)
        except FencedError:
            self.fenced = True
        except (BadMessageError, QuotaError) as error:
            self.fault = str(error)
        except Exception as error:
            log.exception("taking the output of %s failed", self._id["run_id"])
            self.fault = f"its evidence could not be stored: {type(error).__name__}: {error}"
        finally:
            connection.close()

    def take(self, line: bytes) -> None:
        """Act on one line of standard output; `BadMessageError` when it is none of the protocol's messages."""
        try:
            message: Message = MESSAGES.validate_json(line)
        except pydantic.ValidationError as error:
            shown = line[:200].decode(errors="replace").strip()
            problem = error.errors(include_url=False)[0]["msg"]
            raise BadMessageError(f"the run printed something that is no message ({problem}): {shown}") from None
        match message:
            case SampleMessage():
                self._samples.append((message.seq, message.values))
            case ProgressMessage():
                self._progress = message
            case ResultMessage():
                self.result = message
            case StateMessage():
                self._stored(lambda: record_state(**self._id, state=State(message.state)))
            case SegmentMessage():
                self._segment(message)
            case ArtifactMessage():
                self._artifact(message)

    def flush(self, *, now: bool = False) -> None:
        """Write what was gathered, if a second has passed or ``now``."""
        if not now and time.monotonic() - self._flushed < FLUSH_EVERY_S:
            return
        self._flushed = time.monotonic()
        if now:
            self._stored(self._write_gathered)
            return
        try:
            self._write_gathered()
        except DatabaseError as error:
            log.warning("samples of %s wait for the database: %s", self._id["run_id"], error)
            connection.close()

    def _write_gathered(self) -> None:
        if self._samples:
            append_samples(**self._id, samples=self._samples)
            self._samples = []
        if self._progress is not None:
            seen = self._progress
            record_progress(**self._id, done=seen.done, total=seen.total, eta_s=seen.eta_s)
            self._progress = None

    def _segment(self, message: SegmentMessage) -> None:
        path = inside(self._folder, message.file)
        known: dict[str, Any] = {"number": message.number, "records": message.records, "sha256": message.sha256}
        # The file stays: at its end the run reads all its segments again to make tables and audit from them.
        self._stored(lambda: store_segment(**self._id, **known, path=path))

    def _artifact(self, message: ArtifactMessage) -> None:
        path = inside(self._folder, message.file)
        self._stored(lambda: store_artifact(**self._id, name=message.name, path=path, sha256=message.sha256))

    def _stored(self, write: Callable[[], object]) -> None:
        """``write()``, tried again while database or storage do not answer; the last error is raised."""
        for delay_s in STORE_TRIES_S:
            try:
                write()
            except (DatabaseError, OSError) as error:
                log.warning("%s: trying again in %.1f s: %s", self._id["run_id"], delay_s, error)
                connection.close()
                time.sleep(delay_s)
            else:
                return
        write()
