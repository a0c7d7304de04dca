"""Orders of waiting requests that look at the prefix cache; they answer `scheduler_core.sched.policy.Arrange`."""

from collections.abc import Hashable, Sequence

from scheduler_core.sched.view import Beginnings, RequestView

MOST_ARRANGED = 128
"""With more requests waiting than this the order stays as it is: first come, first served (G-04)."""

SHARED_TOKENS = 32
"""A request with no longer match may wait for another waiting one that shares at least as much with it (G-05)."""


class LongestPrefixFirst:
    """Who has most of its prompt in the cache goes first; equal ones stay in their order (G-05, SGLang's ``lpm``).

    A request whose match is short, and which begins like one that stands before it, goes to the end for this step: by
    then the other has put their common beginning into the cache. Every step for which a request waits counts as
    ``age_tokens`` more tokens found: a request without any is passed for at most ``ceil(longest match / age_tokens)``
    steps, and with 0 for ever.
    """

    def __init__(self, age_tokens: int) -> None:
        self._age_tokens = age_tokens
        self._steps: dict[int, int] = {}

    def arrange(self, waiting: Sequence[RequestView], cache: Beginnings) -> Sequence[RequestView]:
        before = self._steps
        self._steps = {request.id: before.get(request.id, -1) + 1 for request in waiting}
        if len(waiting) > MOST_ARRANGED:
            return waiting
        seen: set[Hashable] = set()
        ranks = []
        for request in waiting:
            hit = cache.hit_tokens(request)
            ranks.append((_follows(request, hit, cache, seen), -hit - self._age_tokens * self._steps[request.id]))
        order = sorted(range(len(waiting)), key=ranks.__getitem__)  # stable: equal ones stay in their order
        return [waiting[place] for place in order]


class DepthFirstByWeight:
    """Requests that share a beginning in the cache stay together, the most shared beginnings first (G-06).

    The cached beginnings of those who wait form a tree; the weight of a node is how many of them lie below it. Children
    are visited by descending weight, equal ones by who came first, and a node's own requests after its children.
    """

    def arrange(self, waiting: Sequence[RequestView], cache: Beginnings) -> Sequence[RequestView]:
        if len(waiting) > MOST_ARRANGED:
            return waiting
        paths = [tuple(cache.hit_keys(request)) for request in waiting]
        weights: dict[Hashable, int] = {}
        for path in paths:
            for key in path:
                weights[key] = weights.get(key, 0) + 1
        firsts: dict[Hashable, int] = {}
        for place, path in enumerate(paths):
            for key in path:
                firsts.setdefault(key, place)
        # A key names all before it, so a path is its own way through the tree; what ends sorts behind what goes on.
        last = (1, 0, 0)
        ranks = [[*((0, -weights[key], firsts[key]) for key in path), last] for path in paths]
        order = sorted(range(len(waiting)), key=ranks.__getitem__)
        return [waiting[place] for place in order]


def _follows(request: RequestView, hit: int, cache: Beginnings, seen: set[Hashable]) -> bool:
    """Whether a request with a short match begins like one seen before it; if not, others may follow it."""
    if hit > SHARED_TOKENS:
        return False
    keys = cache.keys(request)
    shared = next((number for number, key in enumerate(keys) if key not in seen), len(keys))
    if shared * cache.block_size >= SHARED_TOKENS:
        return True
    seen.update(keys)
    return False
