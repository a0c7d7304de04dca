"""The loop that takes one run from its claim to its end."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection

from controlplane.fleet.services import adopt_profile
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from controlplane.runs.services import claim, finish, release
from controlplane.runs.supervision import workdir
from controlplane.runs.supervision.intake import Intake
from controlplane.runs.supervision.lease import LeaseKeeper
from controlplane.runs.supervision.process import RunProcess
from scheduler_core.types.errors import InputError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
# Loading weights and compiling come before the run's own clock starts.
START_MARGIN_S = 120.0
WRITE_TRIES_S = (0.5, 1.0, 2.0, 4.0)


class Cause(Enum):
    """Why a run is stopped before its own end."""

    CANCELLED = auto()
    OVERTIME = auto()
    LEASE_LOST = auto()
    WORKER_STOPS = auto()
    FAULT = auto()


@dataclass(frozen=True)
class Place:
    """Where runs are executed: this worker, the device it holds, and whether it is being told to go."""

    worker: str
    device: str
    stopping: Callable[[], str] = lambda: ""


def supervise(*, run_id: str, attempt: int, place: Place) -> None:
    """Claim the run, play it in a process of its own, store what it hands in, and finish it.

    Returns when nothing of the run is left here: after its end, after losing its lease, or at once when there was
    nothing to claim.
    """
    run = claim(run_id=run_id, attempt=attempt, worker=place.worker, device=place.device)
    if run is None:
        log.info("dropped the message for attempt %d of %s: nothing to claim", attempt, run_id)
        return
    log.info("claimed attempt %d of %s on %s", attempt, run_id, place.device)
    with LeaseKeeper(run_id=run_id, attempt=attempt, worker=place.worker) as lease:
        try:
            _Supervision(run, lease, place).play()
        except Exception as error:  # nothing may be left without an end; the reaper would only repeat it
            log.exception("attempt %d of %s could not be supervised", attempt, run_id)
            reason = f"the worker could not run it: {type(error).__name__}: {error}"
            _write(lease, lambda: finish(run_id=run_id, attempt=attempt, outcome=State.FAILED, reason=reason))
        finally:
            workdir.clear(run_id, attempt)


class _Supervision:
    """One attempt between claim and end."""

    def __init__(self, run: Run, lease: LeaseKeeper, place: Place) -> None:
        self._run = run
        self._id: dict[str, Any] = {"run_id": run.pk, "attempt": run.attempt}
        self._lease = lease
        self._place = place
        self._why = ""

    def play(self) -> None:
        folder, command = workdir.prepare(self._run)
        # No connection is held across a run: it may be long, and this thread has nothing to ask meanwhile.
        connection.close()
        grace_s = settings.RUN_STOP_GRACE.total_seconds()
        process = RunProcess(command, log=folder / "stderr.log", cwd=settings.ROOT, grace_s=grace_s)
        try:
            intake = Intake(run_id=self._run.pk, attempt=self._run.attempt, folder=folder)
            intake.start(process)
            cause = self._watch(process, intake, grace_s)
        finally:
            status = process.close()
        self._end(cause, intake, status, process.log_tail())

    def _watch(self, process: RunProcess, intake: Intake, grace_s: float) -> Cause | None:
        """Wait for the run's end, and bring it about when there is a cause."""
        limit_s = float(self._run.job.get("wall_limit_s", 600.0)) + START_MARGIN_S
        overtime_at, kill_at = time.monotonic() + limit_s, float("inf")
        cause: Cause | None = None
        while not intake.done(LOOK_EVERY_S) or intake.fault or intake.fenced:
            cause = self._stop_cause(intake, overtime_at) or cause
            if cause is Cause.LEASE_LOST or time.monotonic() >= kill_at:
                process.kill()
                intake.done(timeout_s=grace_s)
                return cause
            if cause is not None and kill_at == float("inf"):
                log.info("stopping %s: %s", self._run.pk, self._why)
                process.terminate()
                kill_at = time.monotonic() + grace_s
            if process.ended() and (intake.fault or intake.fenced):
                return cause
        return cause

    def _stop_cause(self, intake: Intake, overtime_at: float) -> Cause | None:
        """The most pressing cause to stop now, its sentence in ``_why``."""
        if lost := self._lease.lost or ("the run is no longer held by this attempt" if intake.fenced else ""):
            self._why = lost
            return Cause.LEASE_LOST
        if intake.fault:
            self._why = intake.fault
            return Cause.FAULT
        if self._lease.cancel_requested:
            self._why = "cancelled on request"
            return Cause.CANCELLED
        if stopping := self._place.stopping() or ("its worker was shut down" if self._lease.worker_stopping else ""):
            self._why = stopping
            return Cause.WORKER_STOPS
        if time.monotonic() > overtime_at:
            self._why = "stopped: it did not end within its time limit (run_limit_s)"
            return Cause.OVERTIME
        return None

    def _end(self, cause: Cause | None, intake: Intake, status: int, log_tail: str) -> None:
        if cause is Cause.LEASE_LOST:
            log.warning("left attempt %d of %s: %s", self._run.attempt, self._run.pk, self._why)
            return
        result = intake.result
        if cause is Cause.WORKER_STOPS and (result is None or result.outcome != "succeeded"):
            reason = f"{self._why}; queued again"
            _write(self._lease, lambda: release(**self._id, reason=reason, log_tail=log_tail))
            return
        outcome, reason = self._outcome(cause, intake, status, log_tail)
        summary = result.summary if result is not None and outcome == State.SUCCEEDED else None
        _write(
            self._lease,
            lambda: finish(**self._id, outcome=outcome, reason=reason, summary=summary, log_tail=log_tail),
        )

    def _outcome(self, cause: Cause | None, intake: Intake, status: int, log_tail: str) -> tuple[State, str]:
        result = intake.result
        if cause in (Cause.FAULT, Cause.OVERTIME):
            return State.FAILED, self._why
        if result is None:
            if cause is Cause.CANCELLED:
                return State.CANCELLED, "cancelled on request; it had to be killed"
            last = log_tail.strip().splitlines()[-1:] or ["it printed no error"]
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            return State.FAILED, f"the run process ended without a result ({how}): {last[0][:500]}"
        if result.outcome != "succeeded":
            return State(result.outcome), result.reason or self._why
        return self._complete(result.summary, result.reason)

    def _complete(self, summary: dict[str, object] | None, reason: str) -> tuple[State, str]:
        """A success is one only with what its kind has to hand in."""
        if self._run.kind == Run.Kind.CALIBRATION:
            try:
                adopt_profile(run=self._run)
            except InputError as error:
                return State.FAILED, str(error)
        elif summary is None and self._run.kind == Run.Kind.ARM:
            return State.FAILED, "the run says it succeeded but handed in no summary"
        return State.SUCCEEDED, reason


def _write(lease: LeaseKeeper, write: Callable[[], bool]) -> None:
    """The last write of an attempt, tried again while the database does not answer and the lease is held."""
    for delay_s in (*WRITE_TRIES_S, None):
        try:
            if not write():
                log.warning("the end of the attempt was refused: the run is no longer held by it")
            return
        except DatabaseError as error:
            log.warning("could not write the end of the attempt: %s", error)
            connection.close()
        if delay_s is None or lease.lost:
            return
        time.sleep(delay_s)
