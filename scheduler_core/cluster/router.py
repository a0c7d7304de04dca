"""Routers: which instance a request goes to. Each sees loads as old as its `Observer` makes them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from scheduler_core.cluster.load import Load
from scheduler_core.cluster.prefixes import PrefixIndex
from scheduler_core.request.spec import RequestSpec
from scheduler_core.types.time import Ns


class Choice(NamedTuple):
    """The instance picked, by ``score`` (smaller is better); ``next_best`` is the score of the best other one."""

    instance: int
    score: int = 0
    next_best: int | None = None


class Router(Protocol):
    """Answers where a request goes; a total order of candidates, no clock and no chance of its own."""

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        """One of ``candidates`` (never empty, ascending); ``loads`` are by index of instance."""

    def sent(self, request: RequestSpec, instance: int) -> None:
        """The request went to ``instance``, picked here or not."""


Estimate = Callable[[int, int], Ns]
"""Predicted time that an instance (by index) needs to prefill so many tokens."""


def best(candidates: Sequence[int], loads: Sequence[Load], score: Callable[[int], int]) -> Choice:
    """The candidate of the smallest score; of equals the one with fewest requests, then the first. O(candidates)."""
    scored = [(score(index), loads[index].open, index) for index in candidates]
    chosen = min(scored)
    rest = [value for value, _open, index in scored if index != chosen[2]]
    return Choice(chosen[2], chosen[0], min(rest, default=None))


@dataclass
class RoundRobin:
    """Each in turn, whatever its load."""

    turn: int = 0

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        chosen = candidates[self.turn % len(candidates)]
        self.turn += 1
        return Choice(chosen)

    def sent(self, request: RequestSpec, instance: int) -> None:
        return None


@dataclass(frozen=True)
class LeastLoaded:
    """Fewest requests that are not over (join the shortest queue)."""

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        return best(candidates, loads, lambda index: loads[index].open)

    def sent(self, request: RequestSpec, instance: int) -> None:
        return None


@dataclass(frozen=True)
class TwoChoices:
    """The less loaded of two drawn by a hash of seed and request: nearly as good as all, in O(1) (Mitzenmacher)."""

    seed: int = 0

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        count = len(candidates)
        if count == 1:
            return Choice(candidates[0], loads[candidates[0]].open)
        digest = hashlib.blake2b(f"{self.seed}/{request.id}".encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest, "big")
        first = drawn % count
        second = (first + 1 + drawn // count % (count - 1)) % count
        pair = sorted((candidates[first], candidates[second]))
        return best(pair, loads, lambda index: loads[index].open)

    def sent(self, request: RequestSpec, instance: int) -> None:
        return None


@dataclass
class Sticky:
    """A session's later turns go where its first went, as long as that instance may be picked; else least loaded."""

    homes: dict[int, int] = field(default_factory=dict)

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        home = self.homes.get(request.session) if request.session is not None else None
        if home is not None and home in candidates:
            return Choice(home, loads[home].open)
        return best(candidates, loads, lambda index: loads[index].open)

    def sent(self, request: RequestSpec, instance: int) -> None:
        if request.session is not None:
            self.homes[request.session] = instance


@dataclass
class PrefixAware:
    """The longest known prompt beginning, unless loads are out of balance.

    Out of balance is a difference of more than ``imbalance`` requests and a ratio of more than 1.5 between the most
    and the least loaded candidate; then, and where less than half of the prompt is known anywhere, the least loaded
    gets it. After the cache-aware router of SGLang 0.5.23, with block identities in place of its text tree.
    """

    index: PrefixIndex
    imbalance: int = 32

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        counts = [loads[candidate].open for candidate in candidates]
        low, high = min(counts), max(counts)
        known = self.index.matches(request)
        longest = max((known.get(candidate, 0) for candidate in candidates), default=0)
        if (high - low > self.imbalance and 2 * high > 3 * low) or 2 * longest < request.prompt_tokens:
            return best(candidates, loads, lambda item: loads[item].open)
        return best(candidates, loads, lambda item: -known.get(item, 0))

    def sent(self, request: RequestSpec, instance: int) -> None:
        self.index.sent(request, instance)


class Loan(NamedTuple):
    """The first ``tokens`` of a prompt, from the instance ``source``, over an idle link in ``way_ns``."""

    source: int
    tokens: int
    way_ns: Ns


@dataclass(frozen=True)
class Lending:
    """Who lends a beginning of a prompt: the first of those that know most of it, where that is more than ``ratio``
    times what the borrower knows itself (MK-01). ``way_ns`` is how long so many tokens take over an idle link."""

    ratio: float
    way_ns: Callable[[int], Ns]

    def loan(self, known: Mapping[int, int], borrower: int) -> Loan | None:
        """What is to be fetched to ``borrower``; ``known`` tokens are by instance."""
        most = max(known.values(), default=0)
        own = known.get(borrower, 0)
        if most <= self.ratio * own:
            return None
        source = min(instance for instance, tokens in known.items() if tokens == most)
        return Loan(source, most, self.way_ns(most - own))


@dataclass
class FirstToken:
    """The smallest predicted time to the first token: queued prefill, then the part of the prompt not known there.

    With ``lending`` what another one knows may be fetched first, if that is much more: then its way over an idle link
    counts, and only the rest of the prompt is computed (MK-01, MK-02).
    """

    index: PrefixIndex
    estimate: Estimate
    lending: Lending | None = None

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        known = self.index.matches(request)

        def predicted(item: int) -> Ns:
            loan = None if self.lending is None else self.lending.loan(known, item)
            have, way_ns = (known.get(item, 0), 0) if loan is None else (loan.tokens, loan.way_ns)
            own = max(1, request.prompt_tokens - have)
            return way_ns + self.estimate(item, loads[item].prefill_tokens + own)

        return best(candidates, loads, predicted)

    def sent(self, request: RequestSpec, instance: int) -> None:
        self.index.sent(request, instance)


@dataclass(frozen=True)
class FewestTokens:
    """Fewest prompt tokens that wait to be computed (SW-01)."""

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        return best(candidates, loads, lambda index: loads[index].prefill_tokens)

    def sent(self, request: RequestSpec, instance: int) -> None:
        return None


@dataclass(frozen=True)
class Freest:
    """Most KV tokens free per request there: Llumnix's freeness, all waiting demand counted as usage (LX-02, LX-03).

    ``capacity`` are the KV tokens that each instance's pool holds; ``headroom`` of them count as used where an urgent
    request is, so that it is not crowded.
    """

    capacity: Sequence[int]
    headroom: int = 0

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        def freeness(index: int) -> int:
            load = loads[index]
            used = load.kv_tokens + (self.headroom if load.urgent else 0)
            return (self.capacity[index] - used) // (load.open or 1)

        return best(candidates, loads, lambda index: -freeness(index))

    def sent(self, request: RequestSpec, instance: int) -> None:
        return None


@dataclass
class KvCost:
    """Least sum of prompt tokens to compute, ``weight`` each, and KV tokens held, both with this request.

    The cost function of KV-aware routers as Dynamo and llm-d ship them, in tokens for blocks: what is known to be
    cached need not be computed, and what is held slows down every decode step.
    """

    index: PrefixIndex
    weight: float

    def pick(self, request: RequestSpec, candidates: Sequence[int], loads: Sequence[Load]) -> Choice:
        known = self.index.matches(request)

        def cost(item: int) -> int:
            compute = loads[item].prefill_tokens + request.prompt_tokens - known.get(item, 0)
            return round(self.weight * compute) + loads[item].kv_tokens + request.prompt_tokens

        return best(candidates, loads, cost)

    def sent(self, request: RequestSpec, instance: int) -> None:
        self.index.sent(request, instance)


def asks_loads(router: Router) -> bool:
    """Whether where requests go depends on loads."""
    return not isinstance(router, RoundRobin)


def asks_prompts(router: Router) -> bool:
    """Whether where requests go depends on prompt tokens that wait to be computed."""
    return isinstance(router, FirstToken | FewestTokens | KvCost)
