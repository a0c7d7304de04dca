"""Faults reported in public against serving engines and simulators, as scenes with the right outcome."""

import random
from collections import Counter
from typing import Any

import pytest

from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import check_against
from scheduler_core.testing.builders import Stepper, play, policy_spec, profile, request
from scheduler_core.types.errors import InputError
from scheduler_core.types.reasons import Outcome, Reject
from scheduler_core.types.records import Admitted, Deferred, Finished, Preempted, Step


def vllm(**settings: Any) -> Any:
    return policy_spec("vllm_v1", **settings)


def outcomes(played: Any) -> Any:
    return Counter(record.outcome for record in played.sink.of(Finished))


@pytest.mark.parametrize("policy", ["vllm_v1", "static"])
def test_a_request_larger_than_the_pool_blocks_nobody(policy: Any) -> None:
    """49 blocks of 16: 1,002 + 1 tokens need 63; five small ones behind it finish."""
    requests = [request(0, 1002, 1), *(request(index, 20, 50) for index in range(1, 6))]
    played = play(policy_spec(policy), requests, capacity=Capacity(49, 4096))
    refused, *rest = sorted(played.sink.of(Finished), key=lambda record: record.request)
    assert (refused.outcome, refused.reason) == (Outcome.REJECTED, Reject.NEVER_FITS_POOL)
    assert (refused.need, refused.have) == (63, 49)
    assert [(record.outcome, record.output_tokens) for record in rest] == [("finished", 50)] * 5


def test_the_pool_check_counts_allowed_outputs() -> None:
    """A prompt of 10 blocks fits 49, but with 700 outputs allowed (ceil(859 / 16) = 54 blocks) it never can."""
    played = play(vllm(), [request(0, 160, 10, output_limit=700)], capacity=Capacity(49, 4096))
    (record,) = played.sink.of(Finished)
    assert (record.outcome, record.need, record.have) == ("rejected", 54, 49)


def test_a_small_pool_under_overload_ends_and_does_not_thrash() -> None:
    """125 blocks, 200 requests of 256 in / 128 out (24 blocks each), far above capacity.

    Everything ends; nobody preempted is touched again in its step; doubling the queue does not square preemptions.
    """

    def run(count: Any) -> Any:
        requests = [request(index, 256, 128, at_ms=index) for index in range(count)]
        target = profile(base_ms=5, prefill_token_ms=0.02)
        spec = vllm(cache__prefix="none", batch__token_budget=512)
        return play(spec, requests, capacity=Capacity(125, 4096), target=target, law_interval=50)

    played = run(200)
    assert outcomes(played) == {"finished": 200}
    by_step = {step.id: {row[0] for row in step.grants} for step in played.sink.of(Step)}
    preempted = played.sink.of(Preempted)
    assert preempted
    assert all(record.request not in by_step[record.step] for record in preempted)
    assert len(run(400).sink.of(Preempted)) < 3 * len(preempted)


@pytest.mark.parametrize(("order", "expected"), [("arrival", 1), ("priority", 0)])
def test_who_returns_first_after_preemption_follows_the_written_rule(order: Any, expected: Any) -> None:
    """A (request 1) runs and is preempted while B (request 0), which arrived earlier, waits for room.

    Under arrival order the preempted one waits at the front. Under priority order the key (priority, arrival) decides,
    without any bonus: B goes first. Pool of 5 blocks of 4; A and a filler of better priority have 2 and want a third.
    """
    spec = vllm(order__by=order, cache__prefix="none", cache__block_size=4)
    stepper = Stepper(spec, Capacity(5, 100))
    stepper.submit(2, 7, limit=6, priority=-1)
    stepper.step()
    stepper.submit(1, 7, limit=6)
    stepper.step()
    stepper.submit(0, 15, limit=2, arrival_ns=0)
    while not any(isinstance(record, Preempted) for record in stepper.records):
        stepper.step()
    stepper.step(last=[2])
    stepper.step()
    resumed = [record for record in stepper.records if isinstance(record, Admitted)][2]
    assert resumed.request == expected


def test_an_urgent_request_behind_full_slots_is_shown_to_wait() -> None:
    """Two slots taken: without preemption for slots the wait has a record with its numbers."""
    stepper = Stepper(vllm(order__by="priority", batch__size=2), Capacity(100, 1000))
    for index in range(2):
        stepper.submit(index, 10, priority=5)
    stepper.step()
    stepper.submit(2, 10, priority=0)
    stepper.step()
    (record,) = (r for r in stepper.records if isinstance(r, Deferred))
    assert (record.request, record.reason, record.need, record.have) == (2, "batch_full", 3, 2)
    assert not any(isinstance(r, Preempted) for r in stepper.records)


def test_a_victim_earlier_in_the_list_makes_nobody_lose_a_turn() -> None:
    """Running A, B, C; B needs a block and the policy picks A: B and C both get their token in that step.

    Pool of 7 blocks of 4. A (priority 9) 3 + 1 tokens, B 4 then 5 (its second block), C 3.
    """
    spec = vllm(order__by="priority", cache__prefix="none", cache__block_size=4)
    stepper = Stepper(spec, Capacity(3, 12))
    stepper.submit(0, 2, limit=9, priority=9)
    stepper.step()
    stepper.submit(1, 4, limit=4, priority=0)
    stepper.submit(2, 2, limit=4, priority=1)
    stepper.step()
    assert stepper.step() == {1: 1, 2: 1}
    assert [r.request for r in stepper.records if isinstance(r, Preempted)] == [0]


def test_a_prompt_over_the_budget_without_chunking_is_refused() -> None:
    """Budget 2,048: 2,048 tokens run, 2,049 are refused with both figures, nothing waits for ever."""
    spec = vllm(batch__chunked_prefill=False, batch__token_budget=2048)
    played = play(spec, [request(0, 2048, 3), request(1, 2049, 3)], capacity=Capacity(1000, 4096))
    by_id = {record.request: record for record in played.sink.of(Finished)}
    assert by_id[0].outcome == "finished"
    assert (by_id[1].outcome, by_id[1].reason, by_id[1].need, by_id[1].have) == (
        "rejected",
        "over_step_budget",
        2049,
        2048,
    )


def test_the_policy_itself_is_refused_when_saved_for_that_target() -> None:
    with pytest.raises(InputError, match=r"batch\.token_budget: 2048 is below the model's longest prompt"):
        check_against(vllm(batch__chunked_prefill=False, batch__token_budget=2048), model_length=4096, kv_blocks=1000)
    check_against(vllm(batch__chunked_prefill=False, batch__token_budget=4096), model_length=4096, kv_blocks=1000)


def test_without_chunking_a_preempted_request_that_outgrew_the_budget_comes_back() -> None:
    """Budget 8, pool of 5 blocks of 4, two requests of 4 + 9: both need their third block at 9 known tokens.

    The second is preempted with 9 known, more than the whole budget: whole it could never be scheduled again.
    """
    spec = vllm(batch__chunked_prefill=False, batch__token_budget=8, cache__prefix="none", cache__block_size=4)
    requests = [request(0, 4, 9), request(1, 4, 9)]
    played = play(spec, requests, capacity=Capacity(5, 100))
    assert outcomes(played) == {"finished": 2}
    assert played.sink.of(Preempted)


def test_the_step_is_filled_to_its_budget_and_no_further() -> None:
    """Block 4, budget 8, prompts of 4 and 8: step 1 computes 4 + 4, step 2 the decode and the other 4."""
    stepper = Stepper(vllm(cache__block_size=4, batch__token_budget=8), Capacity(100, 1000))
    stepper.submit(0, 4, limit=1)
    stepper.submit(1, 8, limit=1)
    assert stepper.step() == {0: 4, 1: 4}
    assert stepper.step() == {1: 4}


def test_a_resumed_request_is_charged_what_it_computes() -> None:
    """Block 256: 600 tokens, preempted, resumed with two full blocks cached: 88 to compute and charged, not 600."""
    stepper = Stepper(vllm(cache__block_size=256), Capacity(6, 2000))
    stepper.submit(0, 512, limit=200)
    stepper.step()
    stepper.submit(1, 599, limit=200)
    assert stepper.step() == {0: 1, 1: 599}
    stepper.instance.preempt(1, now_ns=stepper.now)
    planned = stepper.plan()
    assert [(g.request, g.start, g.length) for g in planned.plan.grants] == [(0, 513, 1), (1, 512, 88)]


def test_a_fully_cached_prompt_recomputes_its_last_block() -> None:
    """512 tokens in blocks of 256, sent twice: the second computes 256, so that a first token exists."""
    stepper = Stepper(vllm(cache__block_size=256), Capacity(6, 2000))
    for index in range(2):
        stepper.submit(index, 512, limit=4, prefix_blocks=tuple(range(32)))
        assert stepper.step(last=[index]) == {index: 512 if index == 0 else 256}


def test_recomputation_does_not_count_as_prefix_hits() -> None:
    """Random unrelated prompts in a small pool: first look-ups hit nothing; hits after preemption stand apart."""
    draw = random.Random(7)
    requests = [request(i, draw.randint(20, 200), draw.randint(20, 120), at_ms=4 * i) for i in range(150)]
    played = play(vllm(), requests, capacity=Capacity(60, 4096))
    admitted = played.sink.of(Admitted)
    assert sum(record.hit_tokens for record in admitted if not record.resumed) == 0
    assert sum(record.hit_tokens for record in admitted if record.resumed) > 0


@pytest.mark.parametrize(("limit", "outcome", "tokens"), [(40, "rejected", 0), (25, "finished", 25)])
def test_one_request_that_fills_the_pool_takes_nobody_down(limit: Any, outcome: Any, tokens: Any) -> None:
    """64 tokens of KV: 40 + 40 can never be held; 40 + 25 can, as the last token's KV is never written."""
    requests = [request(0, 40, limit), request(1, 20, 5, at_ms=1)]
    played = play(vllm(), requests, capacity=Capacity(4, 1000))
    first, second = sorted(played.sink.of(Finished), key=lambda record: record.request)
    assert (first.outcome, first.output_tokens) == (outcome, tokens)
    assert (second.outcome, second.output_tokens) == ("finished", 5)
    assert played.instance.occupancy().kv_used == 0


def test_a_cancel_during_the_last_step_is_a_cancel() -> None:
    """20 requests, every step 1 ms, 3 outputs: the last step runs from 2 to 3 ms and the cancels come at 2.5."""
    requests = [request(index, 10, 3) for index in range(20)]
    cancels = [(index, 2_500_000) for index in range(20)]
    played = play(vllm(), requests, cancels=cancels)
    assert outcomes(played) == {"cancelled": 20}
    assert played.instance.occupancy().kv_used == 0
    assert [record.output_tokens for record in played.sink.of(Finished)] == [2] * 20


def test_thrown_away_work_is_not_counted_twice() -> None:
    """Under heavy preemption each request emits exactly its tokens, once; lost tokens have their own count."""
    requests = [request(index, 30, 60, at_ms=index) for index in range(30)]
    played = play(vllm(cache__prefix="none"), requests, capacity=Capacity(20, 1000))
    assert played.sink.of(Preempted)
    emitted = Counter(row[0] for step in played.sink.of(Step) for row in step.grants if row[5])
    assert emitted == dict.fromkeys(range(30), 60)
    assert [record.output_tokens for record in played.sink.of(Finished)] == [60] * 30
    lost = sum(record.tokens_lost for record in played.sink.of(Preempted))
    recomputed = sum(row[3] for step in played.sink.of(Step) for row in step.grants if row[4] == "recompute")
    assert 0 < lost <= recomputed <= lost + 30 * 60
