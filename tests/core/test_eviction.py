"""Orders of eviction: each against a list that is sorted anew, and scenes that tell them apart."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.kv.eviction import ATTENTION_TOKENS, EVICTIONS, EvictionQueue, Heat, RankedOrder
from scheduler_core.kv.eviction import ReleaseOrder as ByRelease
from scheduler_core.kv.ledger import Ledger
from scheduler_core.kv.prefix_hash import HashIndex
from scheduler_core.kv.prefix_radix import RadixIndex
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.policy import LEAVES_ONLY
from scheduler_core.testing.builders import Stepper, play, policy_spec, request
from scheduler_core.types.errors import CallerError, InputError
from scheduler_core.types.records import Admitted


@given(st.lists(st.tuples(st.sampled_from("aarp"), st.integers(0, 5), st.integers(0, 3)), max_size=60))
def test_ranked_order_against_a_list(operations: Any) -> None:
    queue: RankedOrder[int] = RankedOrder(EVICTIONS["lfu"])
    model: list[tuple[int, int, int]] = []
    for number, (name, unit, uses) in enumerate(operations):
        held = [entry for entry in model if entry[2] == unit]
        if name == "a" and not held:
            queue.add(unit, Heat(0, number, uses))
            model.append((uses, number, unit))
        elif name == "r" and held:
            queue.remove(unit)
            model.remove(held[0])
        elif name == "p" and model:
            assert queue.pop() == model.pop(0)[2]
        model.sort()
        assert list(queue) == [entry[2] for entry in model]
        assert len(queue) == len(model)


@pytest.mark.parametrize("queue", [ByRelease(), RankedOrder(EVICTIONS["fifo"])])
def test_what_is_removed_is_not_evicted(queue: EvictionQueue[int]) -> None:
    for unit in range(3):
        queue.add(unit, Heat(unit, unit))
    queue.remove(0)
    assert [queue.pop(), queue.pop()] == [1, 2]
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("eviction", "order"),
    [
        # A was made at 1 and used at 9 for the third time, B made at 2 and used at 3, C made at 8 and used at 8.
        ("lru", "BCA"),
        ("fifo", "ABC"),
        ("lfu", "CBA"),
        ("slru", "CBA"),
    ],
)
def test_what_each_order_looks_at(eviction: Any, order: Any) -> None:
    heats = {"A": Heat(1, 9, 3), "B": Heat(2, 3, 2), "C": Heat(8, 8, 1)}
    assert sorted(heats, key=lambda name: EVICTIONS[eviction](heats[name], 0)) == list(order)


def test_ageing_lets_old_fame_fade() -> None:
    """A was used 5 times long ago. Each stranger is used once and evicted at rank age + 1, which raises the age by 1.

    Strangers enter at ranks 1, 2, 3, 4; the fifth enters at rank 5 = A's rank, and A, which fell idle before, goes.
    Without ageing A would outlive any number of strangers.
    """
    queues: dict[str, RankedOrder[str]] = {name: RankedOrder(EVICTIONS[name]) for name in ("aged", "lfu")}
    gone: dict[str, list[str]] = {"aged": [], "lfu": []}
    for name, queue in queues.items():
        queue.add("A", Heat(0, 0, 5))
        for number in range(1, 6):
            queue.add(f"s{number}", Heat(number, number))
            gone[name].append(queue.pop())
    assert gone == {"aged": ["s1", "s2", "s3", "s4", "A"], "lfu": ["s1", "s2", "s3", "s4", "s5"]}


def test_cost_keeps_what_is_dear_to_compute_again() -> None:
    """Used once each: a segment at position 0 costs 4096 per token, one at position 4096 twice that.

    Two uses at position 0 are worth as much as one use at 4096: then the least recently used goes.
    """
    rank = EVICTIONS["cost"]
    assert rank(Heat(0, 2, 1, 0), 0) < rank(Heat(0, 1, 1, ATTENTION_TOKENS), 0)
    assert rank(Heat(0, 1, 2, 0), 0) < rank(Heat(0, 2, 1, ATTENTION_TOKENS), 0) < rank(Heat(0, 3, 2, 0), 0)


def test_double_release_is_refused() -> None:
    ledger = Ledger(2, HashIndex(2))
    (block,) = ledger.allocate(1)
    ledger.release([block])
    with pytest.raises(CallerError, match="block 0 is not leased"):
        ledger.release([block])


def test_a_leaf_goes_whole_and_its_parent_takes_its_turn() -> None:
    """Pages a b c d cached as one segment, then a b x: the tree is [a b] - [c d], [x].

    x was used last, so c d goes first, as a whole (G-22), although one block was asked for; then x, then a b.
    """
    index = RadixIndex(6)
    ledger = Ledger(6, index)
    first = ledger.allocate(4)
    ledger.publish(["a", "ab", "abc", "abcd"], first, (0, 4))
    ledger.release(first)
    hits = index.match(["a", "ab", "abx"])
    assert hits == first[:2]
    ledger.adopt(hits)
    second = [*hits, *ledger.allocate(1)]
    ledger.publish(["a", "ab", "abx"], second, (2, 3))
    ledger.release(second)
    assert ledger.evict(1) == 2
    assert (index.match(["a", "ab", "abc"]), index.match(["a", "ab", "abx"])) == (first[:2], second)
    assert ledger.evict(1) == 1
    assert ledger.evict(1) == 2
    assert (ledger.cached, ledger.clean) == (0, 6)


def test_two_that_compute_the_same_keep_one_copy() -> None:
    """Blocks of 4, two equal prompts of 9 in one step: both compute 9, nothing is cached yet (G-25).

    A's two full blocks enter the tree when the step comes back; B's are there already, so B's table takes A's and the
    next plan tells the executor (G-23). Tables: 3 + 3 blocks of which 2 are shared, 4 in use.
    """
    spec = policy_spec("sglang", cache__block_size=4)
    stepper = Stepper(spec, Capacity(20, 100))
    for index in range(2):
        stepper.submit(index, 9, limit=9, seed=1)
    first = stepper.plan()
    assert [(grant.length, grant.new_blocks) for grant in first.plan.grants] == [(9, (0, 1, 2)), (9, (3, 4, 5))]
    stepper.complete(first)
    second = stepper.plan()
    (rebind,) = second.plan.rebinds
    assert (rebind.request, rebind.epoch, rebind.first, rebind.blocks) == (1, 0, 0, (0, 1))
    assert second.occupancy.kv_used == 4
    assert second.plan.digest() != first.plan.digest()


def test_radix_publishes_emitted_tokens_at_the_end_only() -> None:
    """Blocks of 4, prompt 7, 6 outputs: positions up to 12 are computed, so 3 blocks are full at the end.

    While it decodes only the prompt's one full block can be hit; after its end a continuation finds all three.
    """
    stepper = Stepper(policy_spec("sglang", cache__block_size=4), Capacity(20, 100))
    stepper.submit(0, 7, limit=6)
    for _ in range(5):
        stepper.step()
    assert stepper.instance.occupancy().kv_cached == 0
    stepper.step()
    assert stepper.instance.occupancy().kv_cached == 3


@pytest.mark.parametrize("eviction", sorted(LEAVES_ONLY))
def test_orders_that_break_chains_need_the_tree(eviction: Any) -> None:
    with pytest.raises(InputError, match=f"{eviction} may drop a beginning"):
        resolve(policy_spec("vllm_v1", cache__eviction=eviction))
    resolve(policy_spec("vllm_v1", cache__eviction=eviction, cache__prefix="radix"))


def hits_of(eviction: str, prefix: str) -> int:
    """A beginning of 4 blocks, used twice in a row and then after every five strangers, in a pool of 12."""
    requests = []
    for number in range(60):
        if number % 6 == 0 or number == 1:
            requests.append(request(number, 70, 2, at_ms=40 * number, prefix_blocks=(1, 2, 3, 4)))
        else:
            requests.append(request(number, 70, 2, at_ms=40 * number, prefix_blocks=(100 + number,)))
    spec = policy_spec("vllm_v1", cache__prefix=prefix, cache__eviction=eviction)
    played = play(spec, requests, capacity=Capacity(12, 1000))
    return sum(record.hit_tokens for record in played.sink.of(Admitted))


def test_frequency_keeps_what_recency_loses() -> None:
    """Five strangers bring 25 blocks between two uses of the shared 64 tokens: recency forgets them in a pool of 12.

    They are hit once at the start in any case; by frequency also in the nine later uses, because strangers, used once,
    go before what was used twice.
    """
    for prefix in ("hash", "radix"):
        assert hits_of("lru", prefix) == 64
        assert hits_of("lfu", prefix) == 10 * 64


def test_a_fence_holds_a_continuation_together_with_its_beginning() -> None:
    """Blocks a -> b are given up behind a fence; another request takes a and gives it up at once.

    b may still be read, so a, on which it hangs, must not count as evictable either: of 3 blocks 1 is free. When the
    fence is lifted, the leaf a-b goes whole.
    """
    index = RadixIndex(3)
    ledger = Ledger(3, index)
    first = ledger.allocate(2)
    ledger.publish(["a", "ab"], first, (0, 2))
    ledger.release(first, fence=0)
    shared = index.match(["a"])
    ledger.adopt(shared)
    ledger.release(shared)
    assert (ledger.free, ledger.cached, ledger.evict(1)) == (1, 0, 0)
    ledger.check([])
    ledger.lift(0)
    assert (ledger.free, ledger.cached, ledger.evict(2)) == (3, 2, 2)
    ledger.check([])
