"""Faults of scheduling and block accounting reported in public against serving engines, each as its scene on real
kernels: what is decided, computed, held and emitted. The rules themselves, step by step, are in
`tests.core.test_public_faults`, faults of cancels and counts in `test_real_counts`.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

from gpu_runner.engine.describe import describe
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import check_against
from scheduler_core.testing.builders import policy_spec, request
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.reasons import Outcome, Preempt, Reject
from scheduler_core.types.records import Admitted, Deferred, Finished, Preempted, Step
from tests.engine.scenes import engine, has_its_own_tokens, serve

POLICIES = sorted(manifests())


@pytest.mark.parametrize("policy", POLICIES)
def test_1_a_request_larger_than_the_pool_blocks_nobody(policy: str) -> None:
    """49 blocks of 16. A prompt of 1,002 and a token need ceil(1003 / 16) = 63; one of 160 fits, but with the 700
    outputs that it may have it needs ceil(859 / 16) = 54, the last token's KV being never written. Both are refused at
    once with both figures, before any step; five of 20 + 50 behind them finish with their tokens.
    """
    small = [request(index, 20, 50) for index in range(2, 7)]
    with engine(49) as executor:
        served = serve(executor, [request(0, 1002, 1), request(1, 160, 10, output_limit=700), *small], policy=policy)
        first, second, *rest = served.ended
        assert (first.reason, first.need, first.have) == (Reject.NEVER_FITS_POOL, 63, 49)
        assert (second.reason, second.need, second.have) == (Reject.NEVER_FITS_POOL, 54, 49)
        assert [type(record) for record in served.records if isinstance(record, Finished | Step)][:2] == [Finished] * 2
        assert [(record.outcome, len(record.tokens or [])) for record in rest] == [("finished", 50)] * 5
        assert has_its_own_tokens(executor, replace(small[0], index=1000), rest[0].tokens)


def test_2_overload_on_a_small_pool_ends_and_preempts_in_proportion() -> None:
    """125 blocks of 16; 200 requests of 256 + 128, ceil(383 / 16) = 24 blocks each when done, all at once: far more
    than ten times what it can serve. The run ends and they add up to 200; who is preempted is in no grant of that step;
    twice the queue means at most three times the preemptions, not four; those who were preempted have their own tokens.
    """
    preemptions = {}
    for count in (100, 200):
        with engine(125) as executor:
            requests = [request(index, 256, 128) for index in range(count)]
            served = serve(executor, requests, cache__prefix="none", batch__token_budget=512)
            assert served.report.outcomes == {Outcome.FINISHED: count}
            preemptions[count] = len(served.preempted)
            by_step = {step.id: {row[0] for row in step.grants} for step in served.of(Step)}
            assert all(record.request not in by_step[record.step] for record in served.of(Preempted))
            for index in served.preempted[:3]:
                again = replace(requests[index], index=1000 + index)
                assert has_its_own_tokens(executor, again, served.ended[index].tokens)
    assert 0 < preemptions[200] < 3 * preemptions[100]


@pytest.mark.parametrize(("order", "first"), [("arrival", 2), ("priority", 1)])
def test_3_who_comes_back_first_follows_the_written_rule(order: str, first: int) -> None:
    """5 blocks of 16. B (request 1) arrived first and waits, as its tenant may hold 4 blocks and another request of it,
    F (request 0), has 2 of them. A (request 2), of equal priority and another tenant, arrives while step 0 runs and
    joins in step 1. F then has 31 + 1 tokens, A its 31; in step 2 F takes the last block, in step 3 A needs one, is the
    last admitted and the worst by priority, and is preempted with 32 tokens written. F ends in step 7; both would fit
    now, but not together (4 + 3 blocks).

    In order of arrival the preempted one waits at the front of the queue; in order of priority the key (priority,
    arrival) decides without a bonus, so B goes first. What A computes again is counted, and is the same: 32 tokens.
    """
    requests = [
        request(0, 31, 8, priority=-1, tenant="x"),
        request(1, 60, 2, tenant="x"),
        request(2, 31, 8, at_ms=100, tenant="y"),
    ]
    with engine(5, hold=(0, 110)) as executor:
        served = serve(
            executor,
            requests,
            order__by=order,
            cache__prefix="none",
            cache__tenant_quotas={"x": {"share": 0.8}},
            batch__size=4,
        )
        assert served.report.outcomes == {Outcome.FINISHED: 3}
        assert served.preempted == [2]
        assert served.admitted == [0, 2, first, 3 - first]
        (lost,) = served.of(Preempted)
        assert (lost.tokens_lost, lost.step) == (32, 3)
        assert served.summary.metrics["recomputed_tokens"].value == 32
        assert has_its_own_tokens(executor, replace(requests[2], index=1000), served.ended[2].tokens)


@pytest.mark.parametrize(
    ("order", "priority", "preempted", "passed"),
    [("urgency", 0, 1, True), ("urgency", 5, 0, False), ("priority", 0, 0, False)],
    ids=["urgent", "equal", "switched off"],
)
def test_4_an_urgent_request_takes_a_place_once(order: str, priority: int, preempted: int, passed: bool) -> None:
    """Two may run: two of low priority with 500 outputs. A third with 10 comes while step 20 runs. If it is more urgent
    and may take a place, it is in step 21, at the price of one preemption; of equal priority it causes none; with
    preemption off it waits for one to end, and the wait is shown with its numbers: it would be the third of two.
    """
    background = [request(index, 20, 500, priority=5) for index in range(2)]
    third = request(2, 20, 10, at_ms=490, priority=priority)
    with engine(100, hold=(20, 500)) as executor:
        served = serve(executor, [*background, third], order__by=order, batch__size=2)
        assert served.report.outcomes == {Outcome.FINISHED: 3}
        assert [record.reason for record in served.of(Preempted)] == [Preempt.PRIORITY] * preempted
        joined = next(number for number, step in enumerate(served.steps) if 2 in step)
        assert (joined == 21) == passed
        if not passed:
            assert joined == 500, "both took all their turns first"
            waits = [record for record in served.of(Deferred) if record.request == 2]
            assert [(record.reason, record.need, record.have) for record in waits] == [("batch_full", 3, 2)]
        for planned, ended in zip([*background, third], served.ended, strict=True):
            assert has_its_own_tokens(executor, replace(planned, index=1000 + planned.index), ended.tokens)


def test_5_a_victim_that_stands_earlier_costs_nobody_a_turn() -> None:
    """3 blocks of 8. A (request 0, worst priority) runs first; B with a prompt of 8 and C with 4 come while step 0 runs
    and join in step 1. In step 2 B needs its second block and A, earlier in the order, has to give up its own: B and C
    both get their token in that step. (`serve` checks that in every step each running request is granted once.)
    """
    with engine(3, 8, hold=(0, 110)) as executor:
        served = serve(executor, _victim_first(9), order__by="priority", cache__prefix="none")
        assert served.steps[:3] == [{0: 4}, {0: 1, 1: 8, 2: 4}, {1: 1, 2: 1}]
        assert served.preempted == [0]
        assert served.report.outcomes == {Outcome.FINISHED: 3}


def test_5_a_victim_that_was_held_back_costs_nobody_a_turn() -> None:
    """The same with steps planned ahead, and A has three tokens to make: step 1 is planned before B and C come, step 2
    has A's last token and their prompts. While it runs step 3 is planned, in which A has nothing to do and is held
    back; B needs a block and takes A's. B and C both get their token, and A ends with the three that it made.
    """
    with engine(3, 8, hold=(0, 110), overlap=Overlap.SCHEDULE_AHEAD) as executor:
        ahead = {"execution__overlap": Overlap.SCHEDULE_AHEAD.value}
        served = serve(executor, _victim_first(3), order__by="priority", cache__prefix="none", **ahead)
        assert served.steps[:4] == [{0: 4}, {0: 1}, {0: 1, 1: 8, 2: 4}, {1: 1, 2: 1}]
        assert [(record.request, record.step) for record in served.of(Preempted)] == [(0, 3)]
        assert [(record.outcome, len(record.tokens or [])) for record in served.ended] == [
            ("finished", 3), ("finished", 4), ("finished", 4),
        ]  # fmt: skip


def _victim_first(outputs: int) -> list[PlannedRequest]:
    return [
        request(0, 4, outputs, priority=9),
        request(1, 8, 4, at_ms=100, priority=0),
        request(2, 4, 4, at_ms=100, priority=1),
    ]


def test_6_a_prompt_over_the_budget_without_chunking_is_refused() -> None:
    """Chunking off, budget 512, length limit 1,024: a prompt of 512 runs, one of 513 is refused with both figures. The
    policy itself is refused for this model when it is saved, and taken once its budget holds the longest prompt.
    """
    whole: dict[str, Any] = {"batch__chunked_prefill": False, "batch__token_budget": 512}
    length = describe("tiny").model_length
    with engine(80) as executor:
        fits, refused = serve(executor, [request(0, 512, 3), request(1, 513, 3)], **whole).ended
        assert (fits.outcome, len(fits.tokens or [])) == ("finished", 3)
        assert (refused.outcome, refused.reason, refused.need, refused.have) == (
            Outcome.REJECTED, "over_step_budget", 513, 512,
        )  # fmt: skip
    with pytest.raises(InputError, match=r"batch\.token_budget: 512 is below the model's longest prompt"):
        check_against(policy_spec("vllm_v1", **whole), model_length=length, kv_blocks=80)
    check_against(policy_spec("vllm_v1", **whole | {"batch__token_budget": length}), model_length=length, kv_blocks=80)


def test_7_a_step_is_filled_to_its_budget_and_no_further() -> None:
    """Blocks of 4, budget 8, prompts of 4 and 8 with one output each: 4 + 4, then the other 4."""
    with engine(20, 4) as executor:
        served = serve(executor, [request(0, 4, 1), request(1, 8, 1)], batch__token_budget=8)
        assert served.steps == [{0: 4, 1: 4}, {1: 4}]


def test_7_decodes_are_within_the_budget_and_prompts_fill_what_they_leave() -> None:
    with engine(60) as executor:
        served = serve(executor, [request(i, 30 + 7 * i, 6) for i in range(8)], batch__token_budget=40)
        prompts = [number for number, step in enumerate(served.of(Step)) if any(r[4] == "prefill" for r in step.grants)]
        tokens = [sum(step.values()) for step in served.steps]
        assert max(tokens) == 40
        assert {tokens[number] for number in prompts[:-1]} == {40}


@pytest.mark.parametrize(("age_tokens", "before_it"), [(32, 16), (0, 40)])
def test_8_cached_prompts_overtake_a_cold_one_only_so_often(age_tokens: int, before_it: int) -> None:
    """One place; a client sends a prompt with 512 cached tokens as soon as it has its answer, 40 times, a step each. A
    cold one comes with the first of them. Waiting for k steps counts as 32 k tokens, so it is passed
    ceil(512 / 32) = 16 times; without age it comes last.
    """
    beginning = tuple(range(32))
    cached = [
        request(index, 513, 1, seed=0, prefix_blocks=beginning, after=(index - 1,) if index else ())
        for index in range(40)
    ]
    cold = request(40, 513, 1, seed=5)
    with engine(80) as executor:
        order = {"order__by": "longest_prefix", "order__age_tokens": age_tokens, "batch__size": 1}
        served = serve(executor, [*cached, cold], policy="sglang", **order)
        assert served.admitted.index(40) == before_it
        assert served.report.outcomes == {Outcome.FINISHED: 41}
        assert {tuple(record.tokens or ()) for record in served.ended[:40]} == {tuple(served.ended[0].tokens or ())}
        assert has_its_own_tokens(executor, replace(cold, index=1000), served.ended[40].tokens)


def test_9_who_comes_back_computes_and_is_charged_what_is_left_of_it() -> None:
    """5 blocks of 256, budget 100. Request 0 has a prompt of 506: steps 0 to 4 compute 100 each, step 5 its last 6 and
    94 of request 1's 599. Steps 6 to 10 compute a token of request 0 and 99 of request 1 (589 by then), step 11 the
    last 10. Request 0 has 512 tokens written then and needs its third block in step 12: request 1, with 599 written and
    600 known, gives up its three, of which two full ones stay in the cache. One more is free when request 0 has its
    10th token, in step 14: step 15 computes 600 - 512 = 88 tokens of request 1, and the budget has 12 left for the
    prompt of request 2, which waited for a block.
    """
    requests = [request(0, 506, 10), request(1, 599, 4), request(2, 50, 2)]
    with engine(5, 256) as executor:
        served = serve(executor, requests, batch__token_budget=100)
        assert served.steps[4:6] == [{0: 100}, {0: 6, 1: 94}]
        assert served.steps[10:13] == [{0: 1, 1: 99}, {0: 1, 1: 10}, {0: 1}]
        assert served.preempted == [1]
        assert served.steps[15] == {1: 88, 2: 12}
        assert [(r.request, r.hit_tokens) for r in served.of(Admitted)] == [(0, 0), (1, 0), (1, 512), (2, 0)]
        assert [len(record.tokens or []) for record in served.ended] == [10, 4, 2]
        assert has_its_own_tokens(executor, replace(requests[1], index=1000), served.ended[1].tokens)


@pytest.mark.parametrize("policy", POLICIES)
def test_9_a_fully_cached_prompt_still_computes_something(policy: str) -> None:
    """512 tokens in blocks of 256, sent twice: the second computes its last block, or all where nothing is cached, and
    both answers are the same.
    """
    prompt: dict[str, Any] = {"seed": 0, "prefix_blocks": (1, 2)}
    with engine(8, 256) as executor:
        served = serve(
            executor, [request(0, 512, 4, **prompt), request(1, 512, 4, after=(0,), **prompt)], policy=policy
        )
        first, second = served.of(Admitted)
        computed = sum(step.get(1, 0) for step in served.steps) - 3  # the other three outputs take a token each
        assert first.hit_tokens == 0
        assert second.hit_tokens + computed == 512
        assert second.hit_tokens in ((256,) if manifests()[policy].defaults.cache.prefix != "none" else (0,))
        assert served.ended[0].tokens == served.ended[1].tokens


def test_10_computing_again_is_no_prefix_hit() -> None:
    """1,000 random prompts without a common beginning on 30 blocks of 16. First look-ups find nothing; what preempted
    requests find of their own old blocks has its own counter. A policy that preempts nobody has the same hit rate.
    """
    draw = random.Random(7)
    requests = [request(index, draw.randint(17, 64), draw.randint(4, 24)) for index in range(1000)]
    with engine(30) as executor:
        preempting = serve(executor, requests).summary.metrics
        reserving = serve(executor, requests, policy="reserve_max").summary.metrics
    assert preempting["preemptions"].value > 100  # type: ignore[operator]
    assert preempting["rehit_tokens"].value > 0  # type: ignore[operator]
    assert (reserving["preemptions"].value, reserving["rehit_tokens"].value) == (0, 0)
    assert preempting["hit_rate"].value == reserving["hit_rate"].value == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_11_one_request_that_fills_the_pool_takes_nobody_down(policy: str) -> None:
    """4 blocks of 16: 40 + 40 tokens can never be held, as 79 positions need 5 blocks, and are refused with both
    figures; 40 + 25 can, since the last token's KV is never written. Each time the next request is served.
    """
    with engine(4) as executor:
        for limit, ended in ((40, (Outcome.REJECTED, 0, 5, 4)), (25, (Outcome.FINISHED, 25, None, None))):
            served = serve(executor, [request(0, 40, limit), request(1, 20, 5)], policy=policy)
            first, second = served.ended
            assert (first.outcome, first.output_tokens, first.need, first.have) == ended
            assert (second.outcome, second.output_tokens) == (Outcome.FINISHED, 5)
