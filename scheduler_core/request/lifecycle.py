"""States of a request and the only legal ways between them, as data."""

from enum import IntEnum, auto

from scheduler_core.types.errors import CallerError


class State(IntEnum):
    """Where a live request is; each has exactly one. A paused one keeps its blocks, a swapped one has host blocks."""

    QUEUED = auto()
    RUNNING = auto()
    PAUSED = auto()
    PARKED = auto()
    SWAPPED = auto()
    ENDED = auto()


class Event(IntEnum):
    """What can happen to a request."""

    ADMIT = auto()
    PREEMPT = auto()
    PAUSE = auto()
    RESUME = auto()
    PARK = auto()
    LODGE = auto()
    DEPART = auto()
    SWAP_OUT = auto()
    SWAP_IN = auto()
    FETCH = auto()
    FINISH = auto()
    FAIL = auto()
    ABORT = auto()


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.QUEUED, Event.ADMIT): State.RUNNING,
    (State.QUEUED, Event.PARK): State.PARKED,  # room is reserved for KV that will be delivered
    (State.QUEUED, Event.FINISH): State.ENDED,  # preempted while its last step was in flight (V-18)
    (State.QUEUED, Event.FAIL): State.ENDED,
    (State.QUEUED, Event.ABORT): State.ENDED,
    (State.RUNNING, Event.PREEMPT): State.QUEUED,
    (State.RUNNING, Event.PAUSE): State.PAUSED,
    (State.RUNNING, Event.FINISH): State.ENDED,
    (State.RUNNING, Event.FAIL): State.ENDED,
    (State.RUNNING, Event.ABORT): State.ENDED,
    (State.RUNNING, Event.PARK): State.PARKED,
    (State.PARKED, Event.LODGE): State.QUEUED,
    (State.PARKED, Event.DEPART): State.ENDED,
    (State.PARKED, Event.FAIL): State.ENDED,
    (State.PARKED, Event.ABORT): State.ENDED,
    (State.PAUSED, Event.RESUME): State.RUNNING,
    (State.PAUSED, Event.PREEMPT): State.QUEUED,
    (State.PAUSED, Event.FINISH): State.ENDED,  # as below, paused while its last step was in flight
    (State.PAUSED, Event.FAIL): State.ENDED,
    (State.PAUSED, Event.ABORT): State.ENDED,
    (State.RUNNING, Event.SWAP_OUT): State.SWAPPED,
    (State.PAUSED, Event.SWAP_OUT): State.SWAPPED,
    (State.SWAPPED, Event.SWAP_IN): State.RUNNING,
    (State.SWAPPED, Event.FETCH): State.PAUSED,
    (State.SWAPPED, Event.PREEMPT): State.QUEUED,
    (State.SWAPPED, Event.FINISH): State.ENDED,
    (State.SWAPPED, Event.FAIL): State.ENDED,
    (State.SWAPPED, Event.ABORT): State.ENDED,
}


def next_state(state: State, event: Event) -> State:
    """The state after ``event``; `CallerError` for a pair that is not in `TRANSITIONS`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        legal = ", ".join(e.name for s, e in TRANSITIONS if s is state) or "nothing"
        raise CallerError(f"{event.name} is illegal for a {state.name} request; legal: {legal}") from None
