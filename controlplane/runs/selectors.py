"""Reads of runs."""

from django.db.models import QuerySet

from controlplane.access import Person, visible
from controlplane.runs.lifecycle import LEASED_STATES, TERMINAL_STATES, WAITING_STATES, State
from controlplane.runs.models import Run


def visible_to(user: Person) -> QuerySet[Run]:
    """Runs that ``user`` may see, newest first, with their owner and plan."""
    return visible(Run.objects.select_related("owner", "plan"), user)


def queue(device_kind: str) -> QuerySet[Run]:
    """Waiting runs of a device kind in the order they will be taken."""
    return Run.objects.filter(device_kind=device_kind, state__in=WAITING_STATES).order_by("place", "id")


def queue_position(run: Run) -> int | None:
    """How many runs are taken before this one; None when it does not wait."""
    if run.state not in WAITING_STATES:
        return None
    return queue(run.device_kind).filter(place__lt=run.place).count()


def actions(run: Run) -> dict[str, bool]:
    """What may be done with a run in its present state, by whoever may change it."""
    ended = run.state in TERMINAL_STATES
    return {
        "cancel": not ended and run.cancel_requested_at is None,
        "force_close": run.state in LEASED_STATES,
        "retry": ended and run.state != State.SUCCEEDED,
    }
