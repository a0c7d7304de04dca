"""Orders of waiting requests that look at the prefix cache."""

from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from scheduler_core.policies.prefix_order import MOST_ARRANGED, DepthFirstByWeight, LongestPrefixFirst
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.view import RequestView
from scheduler_core.testing.builders import Stepper, policy_spec
from scheduler_core.types.errors import InputError


class Cache:
    """Requests by id: their block keys, and how many of them are cached; blocks of 16 tokens."""

    block_size = 16

    def __init__(self, keys: dict[int, str], cached: dict[int, int]) -> None:
        self._keys, self._cached = keys, cached

    def hit_tokens(self, request: RequestView) -> int:
        return 16 * self._cached.get(request.id, 0)

    def hit_keys(self, request: RequestView) -> Sequence[Hashable]:
        return self.keys(request)[: self._cached.get(request.id, 0)]

    def keys(self, request: RequestView) -> Sequence[Hashable]:
        text = self._keys[request.id]
        return [text[: number + 1] for number in range(len(text))]


def waiting(count: int) -> list[LiveRequest]:
    return [LiveRequest(RequestSpec(i, 0, 200, 10), seq=i, model_length=1000) for i in range(count)]


def order_of(rule: Any, requests: Any, cache: Any) -> list[int]:
    return [request.id for request in rule.arrange(requests, cache)]


def test_longest_match_first_and_equal_ones_in_their_order() -> None:
    """Matches of 48, 80, 48 and 64 tokens, beginnings that nobody else has."""
    cache = Cache({0: "abcd", 1: "efghi", 2: "jklm", 3: "nopq"}, {0: 3, 1: 5, 2: 3, 3: 4})
    assert order_of(LongestPrefixFirst(0), waiting(4), cache) == [1, 3, 0, 2]


def test_who_begins_like_one_before_it_waits_for_it() -> None:
    """Nothing is cached. 1 begins with 3 blocks (48 tokens) like 0: it goes to the end. 2 shares one block (16): not.

    Once 0 has put its beginning into the cache, 1 matches 48 > 32 tokens and is in order by that.
    """
    keys = {0: "abcd", 1: "abcx", 2: "apqr"}
    rule = LongestPrefixFirst(0)
    assert order_of(rule, waiting(3), Cache(keys, {})) == [0, 2, 1]
    assert order_of(rule, waiting(3)[1:], Cache(keys, {1: 3, 2: 1})) == [1, 2]


def test_with_many_waiting_the_order_stays() -> None:
    """At 129 waiting nothing is sorted, at 128 the last one, with everything cached, comes first."""
    many = waiting(MOST_ARRANGED + 1)
    cache = Cache({i: chr(256 + i) * 4 for i in range(len(many))}, {MOST_ARRANGED: 4, MOST_ARRANGED - 1: 3})
    assert order_of(LongestPrefixFirst(0), many, cache) == list(range(MOST_ARRANGED + 1))
    assert order_of(LongestPrefixFirst(0), many[:-1], cache)[0] == MOST_ARRANGED - 1


@pytest.mark.parametrize(("age_tokens", "passed"), [(256, 16), (0, None)])
def test_a_cold_request_is_passed_for_a_bounded_number_of_steps(age_tokens: Any, passed: Any) -> None:
    """Before every step a newcomer with 4,096 cached tokens comes, and the first in the order is taken.

    With 256 tokens a step the cold one has 256 x 16 = 4,096 in its seventeenth step, and came first: it is passed 16
    times. Without an age bonus it is passed in all 100.
    """
    rule = LongestPrefixFirst(age_tokens)
    requests = waiting(101)
    cold, hot = requests[0], requests[1:]
    cache = Cache({r.id: "c" if r is cold else chr(300 + r.id) * 256 for r in requests}, {r.id: 256 for r in hot})
    queue: list[Any] = [cold]
    for step, newcomer in enumerate(hot):
        queue = list(rule.arrange([*queue, newcomer], cache))
        if queue.pop(0) is cold:
            assert step == passed
            return
    assert passed is None


def test_the_most_shared_beginnings_come_first_and_stay_together() -> None:
    """Cached: 0 and 3 have "ab", 1 "x", 2, 4 and 5 "pq" of which 4 goes on with "r". Weights: p 3, a 2, x 1.

    Below p and q, 4's child comes before the node's own requests 2 and 5.
    """
    keys = {0: "ab", 1: "x", 2: "pq", 3: "ab", 4: "pqr", 5: "pq"}
    cache = Cache(keys, {number: len(text) for number, text in keys.items()})
    assert order_of(DepthFirstByWeight(), waiting(6), cache) == [4, 2, 5, 0, 3, 1]


def test_longest_prefix_in_an_instance() -> None:
    """Blocks of 4. A's 8 shared tokens are cached when it ends. B (cold) and C (same beginning as A) wait: C first."""
    spec = policy_spec("sglang", order__by="longest_prefix", order__age_tokens=0, cache__block_size=4, batch__size=1)
    stepper = Stepper(spec, Capacity(40, 200))
    stepper.submit(0, 50, limit=1, prefix_blocks=(1, 2, 3), prefix_block_size=16)
    assert list(stepper.step()) == [0]
    stepper.submit(1, 30, limit=1)
    stepper.submit(2, 60, limit=1, prefix_blocks=(1, 2, 3), prefix_block_size=16)
    assert stepper.step() == {2: 60 - 48}
    assert stepper.step() == {1: 30}


def test_a_preset_refuses_an_order_it_does_not_know() -> None:
    with pytest.raises(InputError, match="takes one of arrival, priority, longest_prefix, prefix_tree"):
        resolve(policy_spec("sglang", order__by="urgency"))
