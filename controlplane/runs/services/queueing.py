"""What people do with runs: queue, cancel, retry, force-close."""

import time
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.access import require_change
from controlplane.accounts.models import User
from controlplane.errors import ConflictError, QuotaError
from controlplane.live.groups import announce_run
from controlplane.runs.lifecycle import LEASED_STATES, TERMINAL_STATES, WAITING_STATES, State
from controlplane.runs.models import Outbox, Run, Transition
from controlplane.runs.services.changes import change_state, end_attempt, queue_attempt
from controlplane.workloads.models import ArrivalPlan


def next_place() -> int:
    """A place at the end of the queue: microseconds of the clock, so later submissions come later."""
    return time.time_ns() // 1000


def check_quota(*, owner: User, wanted: int) -> None:
    """`QuotaError` when ``wanted`` more runs would exceed what one person may have waiting."""
    waiting = Run.objects.filter(owner=owner, state__in=WAITING_STATES).count()
    if waiting + wanted > settings.RUN_QUEUE_LIMIT:
        raise QuotaError(
            f"{waiting} of your runs are waiting and this would add {wanted}; the limit is "
            f"{settings.RUN_QUEUE_LIMIT}. Wait for some to finish, or cancel them"
        )


def queue_run(
    *, owner: User, title: str, job: dict[str, Any], device_kind: str, plan: ArrivalPlan | None, **fields: Any
) -> Run:
    """Create a queued run and the outbox row of its message, in one transaction.

    ``job`` is what `scheduler_core.spec.job.RunJob` needs except paths. ``fields`` may set ``kind``, ``place``,
    ``total`` and ``max_attempts``.
    """
    fields.setdefault("place", next_place())
    with transaction.atomic():
        run = Run.objects.create(owner=owner, title=title[:160], job=job, device_kind=device_kind, plan=plan, **fields)
        Outbox.objects.create(run=run, attempt=run.attempt)
        Transition.objects.create(
            run=run, attempt=run.attempt, before="", after=State.QUEUED, actor=owner.get_username(), reason="submitted"
        )
    return run


def request_cancel(*, run: Run, user: User, reason: str = "") -> Run:
    """Ask for the end of ``run``: a waiting run is cancelled at once, a leased one by its worker's next heartbeat.

    Asking again changes nothing. `ConflictError` when the run has already ended.
    """
    require_change(user, run)
    reason = reason or f"cancelled by {user.get_username()}"
    # A run may be claimed, or go back to the queue, between reading and writing; each turn follows a real move.
    for _ in range(5):
        run.refresh_from_db()
        if run.state in TERMINAL_STATES:
            if run.state == State.CANCELLED and run.cancel_requested_at:
                return run
            raise ConflictError(f"the run has already ended: {run.state}")
        asked = {"cancel_requested_at": run.cancel_requested_at or timezone.now(), "cancel_requested_by": user}
        if run.state in WAITING_STATES:
            if change_state(run=run, to=State.CANCELLED, actor=user.get_username(), reason=reason, fields=asked):
                return run
        elif run.cancel_requested_at or _flag(run, asked):
            return run
    raise ConflictError("the run keeps changing; try again")


def _flag(run: Run, asked: dict[str, Any]) -> bool:
    flagged = Run.objects.filter(pk=run.pk, attempt=run.attempt, state__in=LEASED_STATES).update(**asked) == 1
    if flagged:
        for name, value in asked.items():
            setattr(run, name, value)
        announce_run(run.pk, attempt=run.attempt)
    return flagged


def force_close(*, run: Run, user: User, reason: str = "") -> Run:
    """End a leased run without its worker, for one that is gone or does not answer: its later writes are refused.

    The state becomes ``cancelled`` when that was asked for, else ``lost``. `ConflictError` when it is not leased.
    """
    require_change(user, run)
    run.refresh_from_db()
    if run.state not in LEASED_STATES:
        raise ConflictError(f"only a run held by a worker can be closed by force; this one is {run.state}")
    to = State.CANCELLED if run.cancel_requested_at else State.LOST
    reason = reason or f"closed by force by {user.get_username()}"
    with transaction.atomic():
        if not change_state(run=run, to=to, actor=user.get_username(), reason=reason):
            raise ConflictError("the run changed at that moment; look again")
        end_attempt(run=run, number=run.attempt, outcome=to, reason=reason)
    return run


def retry_run(*, run: Run, user: User) -> Run:
    """Queue an ended run again as a new attempt; evidence of earlier attempts is kept.

    `ConflictError` unless it failed, was cancelled or was lost.
    """
    require_change(user, run)
    run.refresh_from_db()
    if run.state not in (State.FAILED, State.CANCELLED, State.LOST):
        raise ConflictError(f"only a failed, cancelled or lost run can be retried; this one is {run.state}")
    check_quota(owner=run.owner, wanted=1)
    fresh: dict[str, Any] = {"cancel_requested_at": None, "cancel_requested_by": None, "summary": None}
    # A person's retry buys at least one more execution, whatever the automatic limit was.
    fresh["max_attempts"] = max(run.max_attempts, run.attempt + 1)
    reason = f"retried by {user.get_username()}"
    if not queue_attempt(run=run, actor=user.get_username(), reason=reason, fields=fresh):
        raise ConflictError("the run changed at that moment; look again")
    return run
