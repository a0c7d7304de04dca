"""Requests that stop with what they have: by copying it to the host, by keeping it, and which is chosen."""

from typing import Any

import pytest

from scheduler_core.evidence.finalise import summarise
from scheduler_core.kv.rules import CacheRules
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.policies.resolving import resolve
from scheduler_core.request.lifecycle import State
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.memory import BlockMemory
from scheduler_core.spec.workload import Tier
from scheduler_core.testing.builders import Played, Stepper, grants_of, play, policy_spec, profile, request
from scheduler_core.types.errors import InputError
from scheduler_core.types.plan import BlockCopy
from scheduler_core.types.records import Finished, Paused, Preempted, Resumed, RunStarted, Step
from scheduler_core.types.time import ns_from_ms


def vllm(**settings: Any) -> Any:
    return policy_spec("vllm_v1", **{"cache__prefix": "none", "cache__block_size": 4, **settings})


def swapping(**settings: Any) -> Any:
    return vllm(**{"cache__preemption": "swap", "cache__host_blocks": 8, **settings})


def test_swap_out_and_in() -> None:
    """Blocks of 4, pool of 5, A and B with prompts of 8 (2 blocks) and 6 outputs: 13 positions, 4 blocks at most.

    Step 0 prefills both, 4 blocks. In step 1 A takes the fifth; B needs a third block and is the last admitted: it
    stops itself. Its 8 computed tokens are in blocks 2 and 3, which go to host blocks 0 and 1. A decodes alone, with
    at most 4 blocks. When A has ended, B's 8 tokens are copied back into two of its blocks, and it goes on with
    position 8: nothing is computed twice.
    """
    stepper = Stepper(swapping(), Capacity(5, 100))
    stepper.submit(0, 8, limit=6)
    stepper.submit(1, 8, limit=6)
    assert stepper.step() == {0: 8, 1: 8}
    planned = stepper.plan()
    assert grants_of(planned) == {0: 1}
    assert planned.plan.copies_out == (BlockCopy(2, 0), BlockCopy(3, 1))
    assert planned.plan.released == (1,)
    assert (planned.occupancy.paused, planned.occupancy.host_used) == (1, 2)
    assert stepper.instance.state_of(1) is State.SWAPPED
    stepper.complete(planned)
    for _ in range(4):
        assert stepper.step() == {0: 1}
    planned = stepper.plan()
    (grant,) = planned.plan.grants
    assert (grant.request, grant.epoch, grant.start, grant.length, grant.hit_tokens) == (1, 1, 8, 1, 8)
    assert [copy.source for copy in planned.plan.copies_in] == [0, 1]
    assert [copy.target for copy in planned.plan.copies_in] == list(grant.new_blocks[:2])
    assert planned.occupancy.host_used == 0
    stepper.complete(planned)
    (paused,) = (r for r in stepper.records if isinstance(r, Paused))
    (resumed,) = (r for r in stepper.records if isinstance(r, Resumed))
    assert (paused.how, paused.blocks, paused.tokens, paused.epoch) == ("swap", 2, 8, 0)
    assert (resumed.how, resumed.tokens, resumed.epoch) == ("swap", 8, 1)
    assert not [r for r in stepper.records if isinstance(r, Preempted)]


def test_a_full_host_pool_means_recomputation_and_says_so() -> None:
    """Host pool of 1, B would need 2: its 8 tokens are lost, with both figures in the record."""
    stepper = Stepper(swapping(cache__host_blocks=1), Capacity(5, 100))
    for index in range(2):
        stepper.submit(index, 8, limit=6)
    stepper.step()
    stepper.step()
    (preempted,) = (r for r in stepper.records if isinstance(r, Preempted))
    assert (preempted.request, preempted.tokens_lost, preempted.need, preempted.have) == (1, 8, 2, 1)


def test_keeping_waits_with_the_blocks_and_revokes_the_youngest() -> None:
    """Pool of 7, blocks of 4: A holds 4 blocks (16 positions), B 3 (12), and each needs one more: nothing is free.

    Both pause; nobody runs and no step is in flight, so the younger, B, gives up its three blocks and is queued. A goes
    on in the same step with one of them.
    """
    stepper = Stepper(vllm(cache__preemption="keep"), Capacity(7, 100))
    stepper.submit(0, 16, limit=9)
    stepper.submit(1, 12, limit=9)
    assert stepper.step() == {0: 16, 1: 12}
    assert stepper.step() == {0: 1}
    paused = [(r.request, r.need, r.have) for r in stepper.records if isinstance(r, Paused)]
    (revoked,) = (r for r in stepper.records if isinstance(r, Preempted))
    (resumed,) = (r for r in stepper.records if isinstance(r, Resumed))
    assert paused == [(0, 1, 0), (1, 1, 0)]
    assert (revoked.request, revoked.reason, revoked.blocks, revoked.tokens_lost) == (1, "revoked", 3, 12)
    assert (resumed.request, resumed.how, resumed.epoch) == (0, "keep", 0)


def test_keeping_waits_for_those_that_end() -> None:
    """Pool of 7, A with 15 + 2 tokens, B with 12 + 9: when B needs its fourth block, A is about to end.

    Step 0: 15 + 12 tokens in 4 + 3 blocks. Step 1: A decodes position 15 in its fourth block and ends; B pauses. Step
    2: B resumes with what it had, without a token computed again.
    """
    stepper = Stepper(vllm(cache__preemption="keep"), Capacity(7, 100))
    stepper.submit(0, 15, limit=2)
    stepper.submit(1, 12, limit=9)
    assert stepper.step() == {0: 15, 1: 12}
    assert stepper.step() == {0: 1}
    assert stepper.instance.state_of(1) is State.PAUSED
    planned = stepper.plan()
    (grant,) = planned.plan.grants
    assert (grant.request, grant.epoch, grant.start, len(grant.new_blocks)) == (1, 0, 12, 1)
    stepper.complete(planned)
    assert not [r for r in stepper.records if isinstance(r, Preempted)]


@pytest.mark.parametrize(("prefill_ms", "how"), [(0.1, "swap"), (0.001, "recompute")])
def test_the_cheaper_way_is_taken(prefill_ms: Any, how: Any) -> None:
    """8 tokens of 1,000 bytes in 2 blocks of 4, at 1 GB/s after 0.1 ms: 0.108 ms one way, 0.216 ms there and back.

    Computing 8 tokens again takes 0.8 ms at 0.1 ms a token, 0.008 ms at a hundredth of that.
    """
    target = profile(prefill_token_ms=prefill_ms)
    spec = swapping(cache__preemption="cheapest")
    stepper = Stepper(spec, Capacity(5, 100, target))
    for index in range(2):
        stepper.submit(index, 8, limit=6)
    stepper.step()
    stepper.step()
    (record,) = (r for r in stepper.records if isinstance(r, Paused | Preempted))
    assert isinstance(record, Paused) == (how == "swap")
    assert (record.copy_ns, record.recompute_ns) == (216_000, round(8 * ns_from_ms(prefill_ms)))


def test_cancelled_while_swapped_out_gives_the_host_blocks_back() -> None:
    stepper = Stepper(swapping(), Capacity(5, 100))
    for index in range(2):
        stepper.submit(index, 8, limit=6)
    stepper.step()
    stepper.step()
    assert stepper.instance.state_of(1) is State.SWAPPED
    ended = stepper.instance.abort(1)
    stepper.instance.check()
    assert ended is not None
    assert stepper.instance.occupancy().host_used == 0
    for _ in range(4):
        stepper.step()
    assert stepper.try_plan() is None
    assert stepper.instance.occupancy().kv_used == 0


def test_a_token_in_flight_counts_when_its_request_is_swapped_out() -> None:
    """Two steps in flight, blocks of 4, pool of 4, A and B with prompts of 8 in two steps.

    When A's first token is there, A needs a third block while B's prefill still runs: B is swapped out behind it, with
    all 8 tokens that the step computes, and B's token is delivered all the same.
    """
    stepper = Stepper(swapping(batch__token_budget=8), Capacity(4, 100), depth=2)
    stepper.submit(0, 8, limit=5)
    first = stepper.plan()
    stepper.submit(1, 8, limit=5)
    second = stepper.plan()
    stepper.complete(first)
    third = stepper.plan()
    assert grants_of(third) == {0: 1}
    assert len(third.plan.copies_out) == 2
    completed = stepper.complete(second)
    assert [number for _, number in completed.emitted] == [1]
    stepper.complete(third)
    for _ in range(3):
        stepper.step()
    planned = stepper.plan()
    (grant,) = planned.plan.grants
    assert (grant.request, grant.start, grant.length, grant.samples) == (1, 8, 1, True)


def busy(spec: Any, blocks: int = 24) -> Played:
    requests = [request(i, 20 + 3 * i, 30, at_ms=3 * i, output_limit=34) for i in range(12)]
    target = profile(base_ms=1, prefill_token_ms=0.2, decode_request_ms=0.1)
    return play(spec, requests, capacity=Capacity(blocks, 200), target=target)


@pytest.mark.parametrize("way", ["recompute", "swap", "keep", "cheapest"])
@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
def test_everybody_ends_and_the_audit_passes(way: Any, prefix: Any) -> None:
    host = 0 if way in ("recompute", "keep") else 20
    spec = vllm(cache__preemption=way, cache__prefix=prefix, cache__host_blocks=host)
    played = busy(spec)
    ends = played.sink.of(Finished)
    assert [end.outcome for end in ends] == ["finished"] * 12
    stopped = len(played.sink.of(Paused)) + len(played.sink.of(Preempted))
    assert stopped
    started = RunStarted("r", 1, "p", "q", {}, {}, "simulation", "modelled", 12, 24, 4, 2048)
    records = [started, *played.sink.records]
    summary = summarise(records, arm="a", repeat=0, tiers={"default": Tier()})
    assert summary.audit.passed, summary.audit.violations
    pauses = summary.metrics["pauses"].value
    assert pauses == len(played.sink.of(Paused))
    assert (pauses > 0) == (way != "recompute")


def test_swapping_computes_no_token_twice_and_takes_the_time_of_its_copies() -> None:
    """Every step's span is its compute and, where it copies, a lane of 0.1 ms + 4,000 bytes a block at 1 GB/s a way."""
    played = busy(swapping(cache__host_blocks=100))
    computed: dict[int, int] = {}
    copies = 0
    for step in played.sink.of(Step):
        for number, _, _, length, _, _, _ in step.grants:
            computed[number] = computed.get(number, 0) + length
        lanes = {kind: end - start for kind, _, start, end in step.lanes}
        expected = sum(100_000 + 4_000 * blocks for blocks in (step.copied_out, step.copied_in) if blocks)
        assert lanes.get("swap", 0) == expected
        copies += step.copied_out + step.copied_in
    assert copies
    assert computed == {i: 20 + 3 * i + 30 - 1 for i in range(12)}


@pytest.mark.parametrize("way", ["swap", "cheapest"])
def test_swapping_needs_a_host_pool(way: Any) -> None:
    with pytest.raises(InputError, match=r"set cache\.host_blocks"):
        resolve(vllm(cache__preemption=way))


def test_the_cheaper_way_needs_times_to_compare() -> None:
    with pytest.raises(InputError, match="nothing says what copies and steps take"):
        build_policy(swapping(cache__preemption="cheapest"), Capacity(10, 100))


def test_blocks_of_a_revoked_grant_are_not_found_in_the_cache() -> None:
    """Blocks of 4: 8 tokens are granted, so 2 full blocks are published, and the grant of the eighth is taken back.

    7 tokens will be computed, so an equal prompt of 9 finds 1 block, not 2; before it was taken back, both.
    """
    memory = BlockMemory(blocks=6, block_size=4, rules=CacheRules())
    owner, twin = (LiveRequest(RequestSpec(i, 0, 9, 5, seed=1), seq=i, model_length=100) for i in range(2))
    memory.grow(owner, 2)
    memory.publish(owner, 8)
    assert len(memory.match(twin)) == 2
    memory.retract(owner, 7)
    assert len(memory.match(twin)) == 1
    memory.release(owner)
    memory.check([], [])
