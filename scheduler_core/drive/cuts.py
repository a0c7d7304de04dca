"""Ends that come from outside: clients that cancel, and time limits that pass."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from scheduler_core.sched.plan import Ended
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.foresight import Foresight
from scheduler_core.types.patience import Patience
from scheduler_core.types.reasons import Outcome, Timeout
from scheduler_core.types.time import Ns

ARRIVE, CANCEL, QUEUE_TIMEOUT, TIMEOUT = range(4)


@dataclass(frozen=True, slots=True, order=True)
class Due:
    """One event: time, kind (at one instant arrivals, then cancels, then time limits), request."""

    at_ns: Ns
    kind: int
    request: int


class Outside(NamedTuple):
    """What reaches a simulation from outside, beside the requests themselves.

    ``cancels`` are (request index, time) at which its client gives up, beside those of the requests; ``patience`` has
    the time limits of tiers; ``foresight`` announces output lengths for a study.
    """

    cancels: Iterable[tuple[int, Ns]] = ()
    patience: Mapping[str, Patience] = MappingProxyType({})
    foresight: Foresight | None = None


class Endable(Protocol):
    """What can be done to a live request from outside; see `scheduler_core.sched.instance.Instance`."""

    def abort(self, request: int, *, outcome: Outcome = ..., reason: str = ...) -> Ended | None: ...
    def started(self, request: int) -> bool: ...


def cuts_of(planned: PlannedRequest, at_ns: Ns, patience: Mapping[str, Patience]) -> Iterator[Due]:
    """When ``planned``, which arrived at ``at_ns``, may be ended from outside."""
    if planned.cancel_ns is not None:
        yield Due(at_ns + planned.cancel_ns, CANCEL, planned.index)
    limits = patience.get(planned.tier)
    if limits is None:
        return
    if limits.queue_ns is not None:
        yield Due(at_ns + limits.queue_ns, QUEUE_TIMEOUT, planned.index)
    if limits.total_ns is not None:
        yield Due(at_ns + limits.total_ns, TIMEOUT, planned.index)


def cut(instance: Endable, due: Due) -> Ended | None:
    """End the request of ``due``, which is no arrival; None when it has ended, or has started in time."""
    if due.kind == CANCEL:
        return instance.abort(due.request)
    if due.kind == TIMEOUT:
        return instance.abort(due.request, outcome=Outcome.TIMED_OUT, reason=Timeout.TOTAL.value)
    if instance.started(due.request):
        return None
    return instance.abort(due.request, outcome=Outcome.TIMED_OUT, reason=Timeout.QUEUE.value)
