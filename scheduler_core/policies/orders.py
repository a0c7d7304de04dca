"""Orders of waiting requests beyond arrival and priority, each with the bound on starvation that it has by itself.

Beside that, any order takes a bound from outside: who has waited ``starvation_ns`` comes first
(`scheduler_core.sched.aging.AgedQueue`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_core.policies.prefix_order import MOST_ARRANGED
from scheduler_core.sched.policy import Order, Predictor
from scheduler_core.sched.view import Beginnings, RequestView, View
from scheduler_core.types.patience import Promise
from scheduler_core.types.plan import Grant, Phase
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import Ns

_PREFILL = Phase.PREFILL
RATIO_SCALE = 1 << 20


@dataclass(frozen=True, slots=True)
class ShortestRemaining:
    """Fewest expected output tokens left first, aged: waiting ``ns_per_token`` counts as much as one token less.

    As all requests age at one rate, the key never changes: ``left * ns_per_token + arrival``. A request can be passed
    only by those that arrive within its own ``left * ns_per_token``, which bounds starvation.
    """

    predictor: Predictor
    ns_per_token: Ns = 10_000_000
    first_come: bool = False

    def key(self, request: RequestView) -> tuple[int, ...]:
        left = max(1, self.predictor.expected(request) - request.emitted)
        return (left * self.ns_per_token + request.spec.arrival_ns,)


@dataclass(frozen=True, slots=True)
class LeastServed:
    """Fewest emitted tokens first: what can be done where lengths are hidden. Newcomers come first, by arrival.

    It has no bound of its own: a stream of newcomers passes a preempted request for ever.
    """

    first_come: bool = False

    def key(self, request: RequestView) -> tuple[int, ...]:
        return (request.emitted,)


@dataclass(frozen=True, slots=True)
class ShortestPrefill:
    """Fewest tokens to compute before the next output token first, aged as `ShortestRemaining` (G-04).

    A request can be passed only by those that arrive within its own ``known * ns_per_token``.
    """

    ns_per_token: Ns = 100_000
    first_come: bool = False

    def key(self, request: RequestView) -> tuple[int, ...]:
        return (request.known * self.ns_per_token + request.spec.arrival_ns,)


@dataclass(frozen=True, slots=True)
class LongestOutput:
    """Largest declared limit first (G-04, lof). It has no bound of its own."""

    first_come: bool = False

    def key(self, request: RequestView) -> tuple[int, ...]:
        return (-request.spec.output_limit,)


@dataclass(frozen=True, slots=True)
class EarliestDeadline:
    """Least slack first: the time of the next promised token, less what computing all before it is estimated to take.

    The ``n``-th token of a request is promised at ``arrival + ttft + n * tpot``; as time takes the same from every
    slack, the key never changes while a request waits. A tier without a promise on the first token counts as one of
    ``best_effort_ns``, so a request can be passed only by those that arrive within its own promise: that bounds
    starvation.
    """

    promises: Mapping[str, Promise]
    prefill_token_ns: float
    best_effort_ns: Ns = 60_000_000_000
    first_come: bool = False

    def key(self, request: RequestView) -> tuple[int, ...]:
        promise = self.promises.get(request.spec.tier, Promise())
        if promise.ttft_ns is None:
            due = request.spec.arrival_ns + self.best_effort_ns
        else:
            due = request.spec.arrival_ns + promise.ttft_ns + round(promise.ttft_token_ns * request.spec.prompt_tokens)
        due += request.emitted * (promise.tpot_ns or 0)
        return (due - round(self.prefill_token_ns * request.known),)


@dataclass(slots=True)
class ResponseRatio:
    """Highest ratio first of prompt tokens computed since a request came to its own tokens to compute (G-07, hrrn).

    Short prompts go first, and every request's ratio grows while it waits. Tokens in the cache are not counted.
    """

    _computed: int = 0
    _since: dict[int, int] = field(default_factory=dict)

    def arrange(self, waiting: Sequence[RequestView], cache: Beginnings) -> Sequence[RequestView]:
        """Highest ratio first, equal ones in their order; by arrival while too many wait (G-04)."""
        since = {request.id: self._since.setdefault(request.id, self._computed) for request in waiting}
        if len(waiting) > MOST_ARRANGED:
            return waiting

        def rank(request: RequestView) -> int:
            uncached = request.known - cache.hit_tokens(request)  # never 0
            return -((self._computed - since[request.id]) * RATIO_SCALE // uncached)

        return sorted(waiting, key=rank)

    def begun(self, now_ns: Ns) -> None:
        """Nothing to do: ratios change with what is computed."""

    def planned(self, view: View, grants: Mapping[int, Grant]) -> None:
        """Count what the step computes of prompts."""
        for grant in grants.values():
            if grant.phase is _PREFILL:
                self._computed += grant.length
            self._since.pop(grant.request, None)

    def ended(self, request: RequestView, outcome: Outcome) -> None:
        """Forget the request."""
        self._since.pop(request.id, None)


@dataclass(frozen=True, slots=True)
class EarlierTakesSlot:
    """A full batch gives up the request that is last in ``order`` to one that is strictly earlier.

    Two requests must not push each other out in turn. Being served makes a request earlier under `ShortestRemaining`;
    where it makes it later, as under `EarliestDeadline`, only one that has emitted nothing may take a slot
    (``fresh_only``), so that nobody takes one twice.
    """

    order: Order
    fresh_only: bool = False
    for_blocks: bool = False
    reads_progress: bool = True

    def pick(self, head: RequestView, running: Iterable[RequestView], short: int) -> RequestView | None:
        if self.fresh_only and head.emitted:
            return None
        last = max(running, key=lambda r: (*self.order.key(r), r.seq))
        return last if self.order.key(last) > self.order.key(head) else None
