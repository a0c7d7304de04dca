"""A change of the rules at a moment of a run: state stays, what is decided from then on is decided anew.

Forking replays the shared beginning instead of copying state: a modelled run is a function of plan, policy and seed, so
two runs that agree until the moment have the same state at it, exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class Switch:
    """``change`` is called once, before the first planning at or after ``at_ns``."""

    at_ns: Ns
    change: Callable[[], None]


def due_from(requests: Sequence[PlannedRequest], at_ns: Ns) -> int:
    """Index of the first request such that it and all after it come at ``at_ns`` or later.

    A request that waits for another comes no sooner than if the answer took no time.
    """
    soonest: dict[int, Ns] = {}
    first = 0
    for request in sorted(requests, key=lambda request: request.index):
        before = max((soonest.get(parent, 0) for parent in request.after), default=0)
        soonest[request.index] = before + request.arrival_ns
        if soonest[request.index] < at_ns:
            first = request.index + 1
    return first
