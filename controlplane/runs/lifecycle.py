"""States of a run and the legal transitions, as data: diagrams and tests come from here.

::

    queued -> dispatched -> starting -> running -> finalising -> succeeded | failed | cancelled
       ^           |            |          |            |
       +-----------+------------+----------+------------+   (lease lost and attempts left: a new attempt is queued)
                                                            (lease lost and none left: lost)

A request to cancel is a flag, not a state.
"""

from django.db import models


class State(models.TextChoices):
    QUEUED = "queued", "Queued"
    DISPATCHED = "dispatched", "Dispatched"
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running"
    FINALISING = "finalising", "Finalising"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    LOST = "lost", "Lost"


LEASED_STATES = (State.STARTING, State.RUNNING, State.FINALISING)
WAITING_STATES = (State.QUEUED, State.DISPATCHED)
TERMINAL_STATES = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST)

_ENDS = {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST}
TRANSITIONS: dict[State, set[State]] = {
    State.QUEUED: {State.DISPATCHED, State.STARTING, State.CANCELLED},
    State.DISPATCHED: {State.QUEUED, State.STARTING, State.CANCELLED},
    State.STARTING: {State.RUNNING, State.QUEUED, State.FAILED, State.CANCELLED, State.LOST},
    State.RUNNING: {State.FINALISING, State.QUEUED, State.FAILED, State.CANCELLED, State.LOST},
    State.FINALISING: {State.QUEUED} | _ENDS,
    State.SUCCEEDED: set(),
    State.FAILED: {State.QUEUED},
    State.CANCELLED: {State.QUEUED},
    State.LOST: {State.QUEUED},
}
