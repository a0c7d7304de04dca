"""What happens when a worker no longer renews its lease."""

from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from controlplane.runs.lifecycle import LEASED_STATES, State
from controlplane.runs.models import Run
from controlplane.runs.services.changes import change_state, end_attempt, queue_attempt

ACTOR = "reaper"


def reap(now: datetime) -> list[Run]:
    """Take every run whose lease has expired away from its worker; the runs that were moved, in their new state.

    With attempts left it is queued again, else it is ``lost``; one that was asked to cancel is ``cancelled``. A lease
    without an expiry counts from its start, or it would never be found. Several reapers may run at once.
    """
    expired = Q(lease_expires_at__lt=now) | Q(lease_expires_at=None, started_at__lt=now - settings.RUN_LEASE)
    runs = list(Run.objects.filter(expired | Q(lease_expires_at=None, started_at=None), state__in=LEASED_STATES))
    return [run for run in runs if _reap_one(run)]


def _reap_one(run: Run) -> bool:
    number, worker = run.attempt, run.lease_worker or "its worker"
    why = f"{worker} stopped renewing its lease"
    unrenewed = Q(lease_expires_at=run.lease_expires_at)
    with transaction.atomic():
        if run.cancel_requested_at:
            outcome = State.CANCELLED
            reason = f"cancelled; {why}"
            moved = change_state(run=run, to=outcome, actor=ACTOR, reason=reason, condition=unrenewed)
        elif number < run.max_attempts:
            outcome = State.LOST
            reason = f"{why}; queued again as attempt {number + 1} of {run.max_attempts}"
            moved = queue_attempt(run=run, actor=ACTOR, reason=reason, condition=unrenewed)
        else:
            outcome = State.LOST
            reason = f"{why} in attempt {number} of {run.max_attempts}"
            moved = change_state(run=run, to=outcome, actor=ACTOR, reason=reason, condition=unrenewed)
        if moved:
            end_attempt(run=run, number=number, outcome=outcome, reason=reason)
    return moved
