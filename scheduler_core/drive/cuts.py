"""What comes from outside beside requests: clients that cancel, time limits that pass, resets of the cache."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from scheduler_core.sched.plan import Ended
from scheduler_core.spec.events import EventsSpec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.foresight import Foresight
from scheduler_core.types.patience import Patience
from scheduler_core.types.reasons import Outcome, Reject, Timeout
from scheduler_core.types.time import Ns, ns_from_s

ARRIVE, CANCEL, QUEUE_TIMEOUT, TIMEOUT, RESET, FORCED_RESET = range(6)
NOBODY = -1


@dataclass(frozen=True, slots=True, order=True)
class Due:
    """One event: time, kind (at one instant arrivals, then cancels, time limits and resets), request or `NOBODY`."""

    at_ns: Ns
    kind: int
    request: int


class CacheResetAt(NamedTuple):
    """The prefix cache is to be forgotten at ``at_ns``; see `scheduler_core.sched.instance.Instance.reset_cache`."""

    at_ns: Ns
    force: bool = False

    def due(self) -> Due:
        """The event."""
        return Due(self.at_ns, FORCED_RESET if self.force else RESET, NOBODY)


class Outside(NamedTuple):
    """What reaches a simulation from outside, beside the requests themselves.

    ``cancels`` are (request index, time) at which its client gives up, beside those of the requests; ``patience`` has
    the time limits of tiers; ``foresight`` announces output lengths for a study; ``resets`` are those of the cache.
    """

    cancels: Iterable[tuple[int, Ns]] = ()
    patience: Mapping[str, Patience] = MappingProxyType({})
    foresight: Foresight | None = None
    resets: Iterable[CacheResetAt] = ()


class Resettable(Protocol):
    """What has a prefix cache to forget; see `scheduler_core.sched.instance.Instance`."""

    def reset_cache(self, at_ns: Ns, *, force: bool = ...) -> None: ...


class Endable(Protocol):
    """What can be done to a live request from outside; see `scheduler_core.sched.instance.Instance`."""

    def abort(self, request: int, *, outcome: Outcome = ..., reason: str = ...) -> Ended | None: ...
    def started(self, request: int) -> bool: ...


class Displacing(Endable, Protocol):
    """What may have to give up a waiting request for a newcomer."""

    def displaced(self) -> int | None: ...


def resets_of(events: EventsSpec | None) -> tuple[CacheResetAt, ...]:
    """The resets among the events of a run."""
    asked = () if events is None else events.cache_resets
    return tuple(CacheResetAt(ns_from_s(item.at_s), item.force) for item in asked)


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


def displace(instance: Displacing) -> Ended | None:
    """End who has to leave a full queue for the newcomer just taken in, if anybody has to."""
    number = instance.displaced()
    return None if number is None else instance.abort(number, outcome=Outcome.REJECTED, reason=Reject.QUEUE_FULL.value)


def reset(instance: Resettable, due: Due) -> bool:
    """Have the cache forgotten if ``due`` asks for that."""
    if due.kind < RESET:
        return False
    instance.reset_cache(due.at_ns, force=due.kind == FORCED_RESET)
    return True
