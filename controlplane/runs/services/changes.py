"""The one conditional update under every change of a run's state."""

from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.live.groups import announce_run
from controlplane.runs.lifecycle import TERMINAL_STATES, TRANSITIONS, State
from controlplane.runs.models import Attempt, Outbox, Run, Transition

NO_LEASE: dict[str, Any] = {"lease_worker": "", "lease_device": "", "lease_expires_at": None}


def change_state(
    *,
    run: Run,
    to: State,
    actor: str,
    reason: str = "",
    condition: Q | None = None,
    fields: dict[str, Any] | None = None,
) -> bool:
    """Move ``run`` as last read to ``to``; False when the row has moved on meanwhile (nothing is written then).

    The update is conditional on id, attempt and state as read, and on ``condition``; ``fields`` are set with it. It
    behaves alike on SQLite and PostgreSQL, with no row locks. ``run`` itself is brought up to date on success. A
    transition that `TRANSITIONS` does not list is a fault of the program.
    """
    before = State(run.state)
    if to not in TRANSITIONS[before]:
        raise ValueError(f"a run cannot go from {before} to {to}")
    reason = storable(reason)
    changes = {**(fields or {}), "state": to, "reason": reason}
    if to in TERMINAL_STATES:
        changes |= NO_LEASE | {"finished_at": timezone.now(), "eta_s": None}
    attempt = run.attempt
    with transaction.atomic():
        rows = Run.objects.filter(condition or Q(), pk=run.pk, attempt=attempt, state=before).update(**changes)
        if rows != 1:
            return False
        Transition.objects.create(run=run, attempt=attempt, before=before, after=to, actor=actor, reason=reason)
        for name, value in changes.items():
            setattr(run, name, value)
        number = run.attempt
        transaction.on_commit(lambda: announce_run(run.pk, attempt=number))
    return True


def storable(text: str) -> str:
    """``text`` with what a database cannot hold (NUL, lone surrogates) shown as replacement characters."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def end_attempt(*, run: Run, number: int, outcome: str, reason: str, log_tail: str = "") -> None:
    """Close the attempt's row, once: the first account of how it ended is kept."""
    Attempt.objects.filter(run=run, number=number, ended_at=None).update(
        ended_at=timezone.now(), outcome=outcome, reason=storable(reason), log_tail=storable(log_tail)
    )


def queue_attempt(
    *,
    run: Run,
    actor: str,
    reason: str,
    condition: Q | None = None,
    fields: dict[str, Any] | None = None,
) -> bool:
    """Send ``run`` back to the queue under its next attempt number; False when it has moved on meanwhile."""
    with transaction.atomic():
        number = run.attempt + 1
        fresh = {"dispatched_at": None, "started_at": None, "finished_at": None, "done": 0, "eta_s": None}
        changes = NO_LEASE | fresh | {"attempt": number} | (fields or {})
        moved = change_state(run=run, to=State.QUEUED, actor=actor, reason=reason, condition=condition, fields=changes)
        if moved:
            Outbox.objects.create(run=run, attempt=number)
    return moved
