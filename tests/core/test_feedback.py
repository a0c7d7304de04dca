"""Feedback from the last rounds: what is seen, when, and what it changes."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.feedback import AdaptiveChunk, AdaptiveWatermark
from scheduler_core.policies.gatekeeper import AdaptiveQueue
from scheduler_core.policies.parts import RoomAboveWatermark
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve_arms
from scheduler_core.policies.rounds import Figures, Round
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.types.errors import InputError
from scheduler_core.types.patience import Patience, Promise
from scheduler_core.types.records import Gated, Preempted, Step
from scheduler_core.types.time import NS_PER_MS
from tests.core.test_fastforward import fused, plain, without_samples

TARGET = profile(base_ms=2, prefill_token_ms=0.05)
# Four decode; a prompt of 4,000 tokens comes at 50 ms: at once it takes 202 ms.
SCENE = [*(request(index, 10, 150) for index in range(4)), request(4, 4000, 2, at_ms=50)]


def adaptive(**settings: Any) -> Any:
    return policy_spec("vllm_v1", batch__token_budget=1024, **settings)


def longest_gaps_ms(played: Any) -> list[float]:
    times = [s.available_ns for s in played.sink.of(Step) for row in s.grants if row[0] == 0 and row[5]]
    return sorted(((b - a) / NS_PER_MS for a, b in pairwise(times)), reverse=True)


def test_the_chunk_adapts_to_the_step_time_and_the_work_stays_the_same() -> None:
    """Budget 1,024 is 53 ms a step; a target of 12 ms allows 200 tokens. Off, three gaps exceed 50 ms.

    On, the first long step is seen with a lag of one round: two gaps exceed 50 ms, then the chunk shrinks.
    """
    off, on = play(adaptive(), SCENE, target=TARGET), play(adaptive(feedback__step_ms=12), SCENE, target=TARGET)
    assert sum(gap > 50 for gap in longest_gaps_ms(off)) >= 3
    assert sum(gap > 50 for gap in longest_gaps_ms(on)) == 2
    assert longest_gaps_ms(on)[2] < 45
    for played in (off, on):
        assert played.report.outcomes == {"finished": 5}
        assert sum(row[3] for s in played.sink.of(Step) for row in s.grants if row[4] == "prefill") == 4040


@pytest.mark.parametrize("lag", [1, 2])
def test_a_round_is_seen_only_after_its_lag(lag: int) -> None:
    """The first long step is the one that brings the prompt; the allowance may first move ``lag`` rounds after it."""
    played = play(adaptive(feedback__step_ms=12, feedback__lag=lag), SCENE, target=TARGET)
    chunks = [row[3] for s in played.sink.of(Step) for row in s.grants if row[0] == 4 and row[4] == "prefill"]
    first_smaller = next(number for number, (a, b) in enumerate(pairwise(chunks), start=1) if b < a)
    assert first_smaller == lag + 1


def test_idle_time_is_no_step() -> None:
    """One request a second, 3 steps each: nothing is ever long, so the allowance stays whole."""
    played = play(adaptive(feedback__step_ms=12), [request(i, 10, 3, at_ms=1000 * i) for i in range(5)])
    chunk = played.instance.policy.chunk
    assert isinstance(chunk, AdaptiveChunk)
    assert chunk.allowance == 1024


def test_nothing_set_changes_nothing_and_fast_forward_adapts_alike() -> None:
    assert not isinstance(play(adaptive(), SCENE[:1]).instance.policy.chunk, AdaptiveChunk)
    spec = policy_spec("vllm_v1", cache__block_size=4, batch__token_budget=24, feedback__step_ms=0.9)
    requests = [request(i, 9 + 3 * i, 14, at_ms=2 * i) for i in range(10)]
    steps, rows = plain(spec, requests, Capacity(60, 60))
    assert fused(spec, requests, Capacity(60, 60))[:2] == (steps, rows)


# --- admission ------------------------------------------------------------------------------------------------------

PROMISED = Capacity(1000, 10_000, promises={"default": Promise(ttft_ns=3 * NS_PER_MS)})
# One at a time, 5 ms each. Six come at once; then one at 12 ms and one at 13 ms.
QUEUE = [*(request(index, 10, 5) for index in range(6)), request(6, 10, 5, at_ms=12), request(7, 10, 5, at_ms=13)]


def admitting(**settings: Any) -> Any:
    return policy_spec("vllm_v1", batch__size=1, feedback__attainment=0.9, feedback__window=4, **settings)


def test_a_gate_that_reads_attainment_by_hand() -> None:
    """Every step takes 1 ms, the first token is promised within 3 ms; window 4, lag 1.

    Request k runs from 5k to 5k + 5 ms. Its first four steps are rounds; after the fifth nobody of the step is left.
    A round is seen when the next one has ended, so rounds 0 to 3 (request 0, kept: 1 ms) are looked at when round 4
    ends, at 6 ms: all kept, no limit. Rounds 4 to 7 (request 1, missed: 6 ms) are looked at when round 8 ends, at
    11 ms; 4 requests waited in them, so 3 may wait from now on. At 12 ms requests 3, 4 and 5 wait, and 6 may come in;
    at 13 ms there are 4, more than 3, and 7 is rejected.
    """
    played = play(admitting(), QUEUE, capacity=PROMISED)
    (gated,) = played.sink.of(Gated)
    assert (gated.request, gated.disposal, gated.trigger, gated.need, gated.have) == (7, "reject", "attainment", 4, 3)
    assert (gated.at_ns, gated.attainment) == (13 * NS_PER_MS, 0.0)
    assert played.report.outcomes == {"finished": 7, "rejected": 1}


@pytest.mark.parametrize("changed", [{"feedback__lag": 5}, {"feedback__attainment": 0}])
def test_later_or_never_looked_at_everybody_comes_in(changed: Any) -> None:
    """With a lag of 5 round 7 is seen when round 12 ends, at 16 ms. At 0 the policy looks at nothing."""
    spec = policy_spec("vllm_v1", batch__size=1, **{"feedback__attainment": 0.9, "feedback__window": 4, **changed})
    played = play(spec, QUEUE, capacity=PROMISED)
    assert not played.sink.of(Gated)
    assert played.report.outcomes == {"finished": 8}


def test_who_gave_up_missed_the_promise_and_who_was_promised_nothing_does_not_count() -> None:
    """Requests that time out in the queue never get a first token: they count as missed, so the gate closes. Where the
    tier has no promise there is no attainment, and the gate stays open."""
    requests = [request(index, 10, 8, at_ms=2 * index, tier="default") for index in range(40)]
    patience = {"default": Patience(queue_ns=2 * NS_PER_MS)}
    closed = play(admitting(), requests, capacity=PROMISED, patience=patience)
    assert closed.report.outcomes["timed_out"] > 0
    queue = getattr(closed.instance.policy.gate, "queue", None)
    assert isinstance(queue, AdaptiveQueue)
    assert queue.attainment is not None and queue.attainment < 0.9
    open_ = play(admitting(), requests, capacity=Capacity(1000, 10_000), patience=patience)
    assert not open_.sink.of(Gated)


def test_an_adaptive_gate_holds_the_promise_of_those_let_in_under_overload() -> None:
    """A5. Four times what can be served: without the gate almost nobody gets a first token in time, with it many do."""
    requests = [request(index, 10, 5, at_ms=1.25 * index) for index in range(400)]
    capacity = Capacity(1000, 10_000, promises={"default": Promise(ttft_ns=20 * NS_PER_MS)})
    kept = {}
    for settings_ in ({}, {"feedback__attainment": 0.9, "feedback__window": 8}):
        played = play(policy_spec("vllm_v1", batch__size=1, **settings_), requests, capacity=capacity)
        first: dict[int, int] = {}
        for step in played.sink.of(Step):
            for row in step.grants:
                if row[5]:
                    first.setdefault(row[0], step.available_ns)
        kept[len(settings_)] = sum(at - requests[i].arrival_ns <= 20 * NS_PER_MS for i, at in first.items())
    assert kept[2] > 5 * kept[0] > 0


def test_the_queue_never_closes_for_good() -> None:
    """After any number of misses one request may wait; promises that are kept open the queue again by a sixteenth."""
    queue = AdaptiveQueue(0.9, window=1)
    newest = Round(NS_PER_MS, 1, 0, 9, 10, 100)
    for waiting in (20.0, 40.0, 4.0, 0.0, 0.0):
        queue.adapt(Figures(newest, 0.5, None, waiting, 0))
    assert queue.allowance == 1
    seen = []
    for _ in range(3):
        queue.adapt(Figures(newest, 0.95, None, 0.0, 0))
        seen.append(queue.allowance)
    queue.adapt(Figures(newest, None, None, 0.0, 0))  # nobody to judge by
    assert [*seen, queue.allowance] == [2, 3, 4, 4]


def test_adapting_to_promises_that_nobody_made_is_refused() -> None:
    data = {
        "name": "x",
        "workload": {
            "arrivals": {"poisson": {"rate_rps": 5}},
            "lengths": {"prompt": {"fixed": 10}, "output": {"fixed": 5}},
            "requests": 5,
        },
        "target": {"modelled": {}},
        "arms": {"a": {"policy": "vllm_v1"}, "b": {"policy": "vllm_v1", "feedback": {"attainment": 0.9}}},
        "goal": {"primary": "ttft_p95_ms"},
    }
    with pytest.raises(InputError, match=r"arms\.b\.feedback\.attainment.*no tier of the workload has a ttft_ms"):
        resolve_arms(parse(ExperimentSpec, data), profile())


# --- memory ---------------------------------------------------------------------------------------------------------


def test_the_watermark_doubles_while_requests_come_back_and_shrinks_when_none_does() -> None:
    """At most 16 blocks, looked at every second round: 1, 2, 4, 8, 16, 16, then three quarters of it each time."""
    mark = AdaptiveWatermark(RoomAboveWatermark(), 16, window=2)
    newest = Round(NS_PER_MS, 1, 0, 9, 10, 100)
    kept = []
    for restarts in [1] * 12 + [0] * 8:
        mark.adapt(Figures(newest, None, None, 0.0, restarts))
        kept.append(mark.kept)
    assert kept[1::2] == [1, 2, 4, 8, 16, 16, 12, 9, 6, 4]


def test_an_adaptive_watermark_stops_thrashing() -> None:
    """30 blocks, short prompts with long answers: newcomers are let in beside others and push them out again.

    With room kept free there are fewer preemptions, and everybody still finishes.
    """
    requests = [request(index, 16, 60, at_ms=index) for index in range(40)]
    lost = []
    for settings_ in ({}, {"feedback__watermark": 0.5, "feedback__window": 8}):
        spec = policy_spec("vllm_v1", cache__prefix="none", batch__size=16, **settings_)
        played = play(spec, requests, capacity=Capacity(30, 1000))
        assert played.report.outcomes == {"finished": 40}
        lost.append(len(played.sink.of(Preempted)))
    assert lost[1] < 0.8 * lost[0]


# --- in fast-forward ------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    feedback=st.fixed_dictionaries(
        {"feedback__window": st.sampled_from([1, 3, 8]), "feedback__lag": st.integers(1, 3)},
        optional={
            "feedback__attainment": st.sampled_from([0.5, 0.95]),
            "feedback__watermark": st.sampled_from([0.1, 0.5]),
            "feedback__step_ms": st.sampled_from([0.9, 2.0]),
            "admission__reject_queued_tokens": st.just(40),
        },
    ),
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 24), st.integers(1, 20)), min_size=1, max_size=14),
    blocks=st.integers(12, 40),
    ttft_ms=st.sampled_from([1, 4]),
)
def test_fast_forward_sees_the_same_figures(feedback: Any, rows: Any, blocks: int, ttft_ms: int) -> None:
    spec = policy_spec("vllm_v1", cache__block_size=4, batch__size=4, batch__token_budget=24, **feedback)
    at, requests = 0, []
    for index, (gap, prompt, output) in enumerate(rows):
        at += gap
        requests.append(request(index, prompt, output, at_ms=at, output_limit=22))
    capacity = Capacity(blocks, 60, promises={"default": Promise(ttft_ns=ttft_ms * NS_PER_MS)})
    patience = {"default": Patience(queue_ns=30 * NS_PER_MS)}
    steps, ends = plain(spec, requests, capacity, patience=patience)
    assert sorted(ends) == list(range(len(rows)))
    fast, fast_ends, _ = fused(spec, requests, capacity, patience=patience)
    assert without_samples(fast) == without_samples(steps)
    assert fast_ends == ends
