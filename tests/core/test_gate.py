"""The gate: every request is queued, throttled, rejected or degraded, and the record says by which numbers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.gatekeeper import Bucket
from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.types.records import Admitted, Arrived, Finished, Gated
from scheduler_core.types.time import NS_PER_MS
from tests.core.test_fastforward import fused, plain, without_samples

CAPACITY = Capacity(60, 1000)


def gated(**settings: Any) -> Any:
    return policy_spec("vllm_v1", **{f"admission__{name}": value for name, value in settings.items()})


def disposals(played: Any) -> dict[int, str]:
    return {record.request: record.disposal for record in played.sink.of(Gated)}


def test_without_a_trigger_there_is_no_gate_and_no_record() -> None:
    played = play(policy_spec("vllm_v1"), [request(i, 20, 5) for i in range(9)])
    assert played.instance.policy.gate is None
    assert not played.sink.of(Gated)


def test_a_bucket_lets_in_at_its_rate_after_a_burst() -> None:
    """10 a second, 200 ms of burst: three at once, then one every 100 ms; after a pause the burst is there again."""
    bucket = Bucket(10, 200 * NS_PER_MS)
    assert [bucket.take(1, 0) // NS_PER_MS for _ in range(5)] == [0, 0, 0, 100, 200]
    assert [bucket.take(1, 2000 * NS_PER_MS) // NS_PER_MS for _ in range(4)] == [2000, 2000, 2000, 2100]


def test_the_throttle_holds_back_and_loses_nobody() -> None:
    """20 at once, 100 a second without a burst: one is let in every 10 ms, in order, and all finish."""
    spec = gated(throttle_requests_per_s=100, throttle_burst_s=0)
    played = play(spec, [request(i, 20, 2) for i in range(20)])
    starts = [record.at_ns // NS_PER_MS for record in played.sink.of(Admitted)]
    assert [record.request for record in played.sink.of(Admitted)] == list(range(20))
    assert starts == [10 * index for index in range(20)]
    assert disposals(played) == dict.fromkeys(range(1, 20), "throttle")
    assert played.report.outcomes == {"finished": 20}


def test_a_tenant_s_bucket_is_its_own() -> None:
    """Tokens: 20 + 5 each, 250 a second: tenant a's third waits 200 ms, b's only one does not wait at all."""
    spec = gated(throttle_tokens_per_s=250, throttle_burst_s=0, throttle_by="tenant")
    requests = [request(i, 20, 5, tenant="b" if i == 2 else "a") for i in range(4)]
    played = play(spec, requests)
    starts = {record.request: record.at_ns // NS_PER_MS for record in played.sink.of(Admitted)}
    assert starts == {0: 0, 2: 0, 1: 100, 3: 200}


@pytest.mark.parametrize(
    ("settings", "reason", "need", "have"),
    [
        ({"reject_queued_tokens": 250}, "queued_tokens", 300, 250),
        ({"reject_wait_ms": 25}, "estimated_wait", 30 * NS_PER_MS, 25 * NS_PER_MS),
    ],
)
def test_newcomers_are_refused_while_too_much_waits(settings: Any, reason: Any, need: Any, have: Any) -> None:
    """Prompts of 100 tokens at 0.1 ms a token, all at once: with 300 queued (30 ms) the fourth is refused."""
    target = profile(base_ms=1, prefill_token_ms=0.1)
    played = play(gated(**settings), [request(i, 100, 2) for i in range(6)], target=target)
    refused = [record for record in played.sink.of(Finished) if record.outcome == "rejected"]
    assert [(r.request, r.reason, r.need, r.have) for r in refused] == [(i, reason, need, have) for i in (3, 4, 5)]
    assert disposals(played) == dict.fromkeys((3, 4, 5), "reject")
    (first, *_) = played.sink.of(Gated)
    assert (first.queued_tokens, first.waiting, first.kv_total, first.work_tokens) == (300, 3, 1000, 102)


def test_cached_blocks_do_not_saturate_the_pool() -> None:
    """A prompt of 48 blocks of 60 ends and stays cached: nobody is leased, so the next is let in at 50 %."""
    spec = gated(reject_kv_share=0.5)
    requests = [
        request(0, 768, 3, prefix_blocks=tuple(range(48))),
        request(1, 20, 2, at_ms=1.5),
        request(2, 20, 2, at_ms=9),
    ]
    played = play(spec, requests, capacity=CAPACITY)
    ends = {record.request: (record.outcome, record.reason) for record in played.sink.of(Finished)}
    assert ends[1] == ("rejected", "kv_saturated")
    assert ends[2][0] == "finished"


def test_a_degraded_request_gets_less_and_says_so() -> None:
    """Above 30 % of the pool newcomers get 4 tokens at most and stand 5 tiers lower."""
    spec = policy_spec(
        "vllm_v1",
        order__by="priority",
        admission__degrade_kv_share=0.3,
        admission__degrade_output_tokens=4,
        admission__degrade_priority=5,
    )
    requests = [request(0, 400, 10), request(1, 20, 9, at_ms=1.5), request(2, 20, 9, at_ms=30)]
    played = play(spec, requests, capacity=CAPACITY)
    ends = {record.request: (record.output_tokens, record.reason) for record in played.sink.of(Finished)}
    assert ends == {0: (10, "stop"), 1: (4, "length"), 2: (9, "stop")}
    (record,) = played.sink.of(Gated)
    assert (record.request, record.disposal, record.trigger) == (1, "degrade", "kv_saturated")
    assert (record.output_limit, record.priority) == (4, 5)


def test_admission_holds_the_tail_of_those_let_in_under_overload() -> None:
    """A5. One at a time, 10 ms each, four times as many as can be served: waits grow without a gate, not with one."""
    tails = {}
    for limits in ({}, {"reject_queued_tokens": 20}):
        spec = gated(**limits)
        spec = spec.model_copy(update={"batch": spec.batch.model_copy(update={"size": 1})})
        played = play(spec, [request(i, 5, 10, at_ms=2.5 * i) for i in range(100)])
        arrived = {record.request: record.at_ns for record in played.sink.of(Arrived)}
        stay = [r.at_ns - arrived[r.request] for r in played.sink.of(Finished) if r.outcome == "finished"]
        tails[len(limits)] = (max(stay) / NS_PER_MS, played.report.outcomes.get("rejected", 0))
    assert tails[0][0] > 700
    assert tails[1][0] < 80
    assert tails[0][1] == 0 < tails[1][1]


GATES = st.fixed_dictionaries(
    {},
    optional={
        "admission__throttle_requests_per_s": st.sampled_from([50, 400]),
        "admission__throttle_tokens_per_s": st.sampled_from([2000, 20_000]),
        "admission__throttle_burst_s": st.sampled_from([0, 0.01]),
        "admission__throttle_by": st.sampled_from(["all", "tenant"]),
        "admission__reject_wait_ms": st.sampled_from([0.5, 5]),
        "admission__reject_queued_tokens": st.sampled_from([10, 60]),
        "admission__reject_kv_share": st.sampled_from([0.4, 0.9]),
        "admission__degrade_kv_share": st.sampled_from([0, 0.5]),
        "admission__degrade_wait_ms": st.sampled_from([0.5, 5]),
        "admission__degrade_output_tokens": st.sampled_from([1, 6]),
        "admission__degrade_priority": st.sampled_from([0, 2]),
    },
)


@settings(max_examples=60)
@given(
    gate=GATES,
    policy=st.sampled_from(
        [("vllm_v1", "arrival"), ("vllm_v1", "priority"), ("static", "arrival"), ("vtc", "arrival")]
    ),
    rows=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 30), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=14
    ),
    blocks=st.integers(14, 40),
    cancels=st.lists(st.tuples(st.integers(0, 13), st.integers(0, 60_000_000)), max_size=3),
)
def test_everybody_has_one_end_and_fast_forward_sees_the_same_gate(
    gate: Any, policy: Any, rows: Any, blocks: Any, cancels: Any
) -> None:
    name, by = policy
    order = {"order__by": by} if by != "arrival" else {}
    spec = policy_spec(name, cache__block_size=4, batch__size=3, batch__token_budget=24, **order, **gate)
    at, requests = 0, []
    for index, (gap, prompt, output, priority) in enumerate(rows):
        at += gap
        requests.append(
            request(index, prompt, output, at_ms=at, output_limit=22, priority=priority, tenant=f"t{priority}")
        )
    steps, ends = plain(spec, requests, Capacity(blocks, 60), cancels=cancels)
    assert sorted(ends) == list(range(len(rows)))
    fast, fast_ends, _ = fused(spec, requests, Capacity(blocks, 60), cancels=cancels)
    assert without_samples(fast) == without_samples(steps)
    assert fast_ends == ends
