"""What a worker does under its lease. Every write carries the attempt and is refused when it is not current."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.errors import FencedError
from controlplane.fleet.models import Worker
from controlplane.live.groups import announce_run
from controlplane.runs.lifecycle import LEASED_STATES, TERMINAL_STATES, WAITING_STATES, State
from controlplane.runs.models import Attempt, Outbox, Run
from controlplane.runs.services.changes import change_state, end_attempt, queue_attempt


@dataclass(frozen=True)
class LeaseState:
    """What a worker learns from renewing: whether the run is still its own, and what it is asked to do."""

    still_mine: bool
    cancel_requested: bool = False
    worker_stopping: bool = False


def claim(*, run_id: str, attempt: int, worker: str, device: str) -> Run | None:
    """Take the lease of a waiting run; None when there is nothing to do (the message is then dropped).

    One conditional update decides between any number of claimants: duplicates, late messages of older attempts and
    messages of runs that were cancelled find no row. When ``device`` is still held by another run the message is
    put back in the outbox.
    """
    run = Run.objects.filter(pk=run_id, attempt=attempt, state__in=WAITING_STATES).first()
    if run is None or run.cancel_requested_at is not None:
        return None
    now = timezone.now()
    lease: dict[str, Any] = {
        "lease_worker": worker,
        "lease_device": device,
        "lease_expires_at": now + settings.RUN_LEASE,
        "started_at": now,
    }
    try:
        with transaction.atomic():
            unasked = Q(cancel_requested_at=None)
            if not change_state(run=run, to=State.STARTING, actor=worker, condition=unasked, fields=lease):
                return None
            Attempt.objects.create(run=run, number=attempt, worker=worker)
    except IntegrityError:  # one_run_per_device
        _put_back(run_id, attempt)
        return None
    return run


def _put_back(run_id: str, attempt: int) -> None:
    later = timezone.now() + settings.RUN_REAP_EVERY
    with transaction.atomic():
        Run.objects.filter(pk=run_id, attempt=attempt, state=State.DISPATCHED).update(
            state=State.QUEUED, dispatched_at=None, reason="its device is still held by another run"
        )
        Outbox.objects.filter(run_id=run_id, attempt=attempt).update(sent_at=None, due_at=later)


def renew_lease(*, run_id: str, attempt: int, worker: str) -> LeaseState:
    """Extend the lease and learn of requests; ``still_mine`` is False when the attempt is no longer the leased one."""
    mine = Run.objects.filter(pk=run_id, attempt=attempt, lease_worker=worker, state__in=LEASED_STATES)
    if mine.update(lease_expires_at=timezone.now() + settings.RUN_LEASE) != 1:
        return LeaseState(still_mine=False)
    asked = mine.filter(cancel_requested_at__isnull=False).exists()
    stopping = Worker.objects.filter(name=worker, stopping_at__isnull=False).exists()
    return LeaseState(still_mine=True, cancel_requested=asked, worker_stopping=stopping)


def held_run(*, run_id: str, attempt: int) -> Run:
    """The run, if ``attempt`` is its current, leased one; `FencedError` else."""
    run = Run.objects.filter(pk=run_id, attempt=attempt, state__in=LEASED_STATES).first()
    if run is None:
        raise FencedError(f"attempt {attempt} of {run_id} no longer holds the run")
    return run


def record_state(*, run_id: str, attempt: int, state: State) -> None:
    """The run process entered ``running`` or ``finalising``. Saying again what is so changes nothing."""
    run = held_run(run_id=run_id, attempt=attempt)
    if run.state == state or State(state) not in LEASED_STATES:
        return
    if not change_state(run=run, to=state, actor=run.lease_worker):
        raise FencedError(f"attempt {attempt} of {run_id} no longer holds the run")


def record_progress(*, run_id: str, attempt: int, done: int, total: int, eta_s: float | None) -> None:
    """Requests ended so far and expected seconds to the end."""
    rows = Run.objects.filter(pk=run_id, attempt=attempt, state__in=LEASED_STATES).update(
        done=done, total=total, eta_s=eta_s
    )
    if rows != 1:
        raise FencedError(f"attempt {attempt} of {run_id} no longer holds the run")
    announce_run(run_id, attempt=attempt)


def finish(
    *,
    run_id: str,
    attempt: int,
    outcome: State,
    reason: str = "",
    summary: dict[str, Any] | None = None,
    log_tail: str = "",
) -> bool:
    """End the leased attempt as ``succeeded``, ``failed`` or ``cancelled``; False when it is no longer current.

    Repeating it is harmless: the second call finds no leased row.
    """
    if outcome not in TERMINAL_STATES:
        raise ValueError(f"{outcome} is not an end")
    # Progress of one worker is the only writer of these states, but a state may have moved between read and update.
    for _ in range(3):
        try:
            run = held_run(run_id=run_id, attempt=attempt)
        except FencedError:
            return False
        with transaction.atomic():
            if State(run.state) is State.STARTING and outcome == State.SUCCEEDED:
                change_state(run=run, to=State.RUNNING, actor=run.lease_worker)
            if State(run.state) is State.RUNNING and outcome == State.SUCCEEDED:
                change_state(run=run, to=State.FINALISING, actor=run.lease_worker)
            if change_state(run=run, to=outcome, actor=run.lease_worker, reason=reason, fields={"summary": summary}):
                end_attempt(run=run, number=attempt, outcome=outcome, reason=reason, log_tail=log_tail)
                return True
    return False


def release(*, run_id: str, attempt: int, reason: str, log_tail: str = "") -> bool:
    """Give the run back to the queue as a new attempt, because its worker stops through no fault of the run."""
    try:
        run = held_run(run_id=run_id, attempt=attempt)
    except FencedError:
        return False
    with transaction.atomic():
        # Being interrupted by an orderly stop does not use up one of the run's attempts.
        again = {"max_attempts": run.max_attempts + 1}
        moved = queue_attempt(run=run, actor=run.lease_worker, reason=reason, fields=again)
        if moved:
            end_attempt(run=run, number=attempt, outcome="released", reason=reason, log_tail=log_tail)
    return moved
