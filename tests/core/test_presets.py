"""Golden vectors and properties of the other named policies."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.parts import LeastEmitted, LeftOfChunk
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.ratio import DECAY_STEPS, NewTokenRatio
from scheduler_core.policies.vtc import VirtualTokenCounter
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.testing.builders import Stepper, play, policy_spec, profile, request
from scheduler_core.types.records import Admitted, Finished, Preempted, Step

ROOMY = Capacity(1000, 10_000)


def emitted(index: Any, prompt: Any, tokens: Any, limit: Any = 100, tenant: Any = "default") -> Any:
    item = LiveRequest(
        RequestSpec(id=index, arrival_ns=0, prompt_tokens=prompt, output_limit=limit, tenant=tenant),
        seq=index,
        model_length=10_000,
    )
    item.known += tokens
    return item


def test_retraction_order() -> None:
    """(emitted, prompt) = (5, 100), (5, 200), (9, 50): (5, 200) goes first, then (5, 100)."""
    running = [emitted(0, 100, 5), emitted(1, 200, 5), emitted(2, 50, 9)]
    first = LeastEmitted().pick(running[0], running)
    assert first is running[1]
    running.remove(first)
    assert LeastEmitted().pick(running[0], running) is running[0]


def test_ratio_after_retraction_and_its_decay() -> None:
    """Survivors emitted 30 in all, 2 requests, limit 100 each: (30 + 40) / 201. Then 600 decode steps to the floor."""
    ratio = NewTokenRatio(page=16)
    assert ratio.ratio == 0.7
    ratio.preempted([emitted(0, 10, 10), emitted(1, 10, 20)])
    assert ratio.ratio == pytest.approx(70 / 201)
    ratio.idle()
    for _ in range(DECAY_STEPS):
        ratio.stepped(decoded=True)
    assert ratio.ratio == pytest.approx(0.7 * 0.14)
    ratio.stepped(decoded=True)
    assert ratio.ratio == pytest.approx(0.7 * 0.14)


def test_vtc_lift() -> None:
    """Queued counters 500 and 300: a tenant at 20 that joins is lifted to 300, one at 400 stays."""
    for own, lifted in ((20, 300), (400, 400)):
        account = VirtualTokenCounter()
        account.counters.update(a=500, b=300, c=own)
        account.arrived(emitted(0, 10, 0, tenant="c"), {"a", "b"})
        assert account.counters["c"] == lifted


def test_vtc_lifts_to_who_left_last_when_nobody_waits() -> None:
    account = VirtualTokenCounter()
    account.arrived(emitted(0, 70, 0, tenant="a"), set())
    account.admitted(emitted(0, 70, 0, tenant="a"), set())
    account.arrived(emitted(1, 10, 0, tenant="b"), set())
    assert account.counters == {"a": 70, "b": 70}


@settings(max_examples=12)
@given(
    prompts=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    outputs=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    size=st.integers(1, 4),
)
def test_vtc_bounds_the_gap_of_backlogged_tenants(prompts: Any, outputs: Any, size: Any) -> None:
    """VT-06: while both wait, the gap stays below the largest input cost + 2 x the tokens of a full batch."""
    stepper = Stepper(policy_spec("vtc", batch__size=size), Capacity(40, 100))
    account = stepper.instance.policy.account
    assert isinstance(account, VirtualTokenCounter)
    for index in range(20):
        stepper.submit(index, prompts[index % 2], limit=outputs[index % 2], tenant="ab"[index % 2])
    bound = max(prompts) + 2 * size * max(outputs)
    while stepper.step():
        waiting = {r.spec.tenant for r in stepper.instance._state.waiting}
        if waiting == {"a", "b"}:
            assert abs(account.counters["a"] - account.counters["b"]) <= bound


def test_sarathi_clamps_what_is_left_of_the_chunk() -> None:
    """Chunk 4, six decodes served, one prompt pending: it gets 0, never less; a seventh decode is not limited."""
    chunk = LeftOfChunk(4, budget=8)
    view = SimpleNamespace(budget_left=8 - 6)
    assert chunk.limit(emitted(0, 10, 0), 10, view) == 0
    view.budget_left = 8 - 3
    assert chunk.limit(emitted(0, 10, 0), 10, view) == 1
    decode = emitted(1, 10, 3)
    decode.granted = 12
    assert chunk.limit(decode, 1, view) > 1


@settings(max_examples=25)
@given(rows=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=12))
def test_sarathi_never_delays_a_decode(rows: Any) -> None:
    """SA-06: whoever has emitted and runs emits in every step, whatever prefills come."""
    requests, at = [], 0
    for index, (gap, prompt, output) in enumerate(rows):
        at += gap
        requests.append(request(index, prompt, output, at_ms=at))
    played = play(policy_spec("sarathi", batch__token_budget=16), requests)
    started: set[int] = set()
    for record in played.sink.records:
        if isinstance(record, Step):
            sampled = {row[0] for row in record.grants if row[5]}
            assert started <= sampled
            started |= sampled
        elif isinstance(record, Finished):
            started.discard(record.request)


@pytest.mark.parametrize("name", ["nano", "reserve_max", "sglang"])
def test_prefill_exclusive_steps_never_mix(name: Any) -> None:
    requests = [request(index, 40 + 7 * index, 20, at_ms=3 * index) for index in range(12)]
    played = play(policy_spec(name, batch__token_budget=100), requests)
    for step in played.sink.of(Step):
        assert len({row[4] == "decode" for row in step.grants}) == 1


def test_nano_cuts_only_the_first_of_a_batch() -> None:
    """Budget 100, prompts 60, 60, 250: the second would have to be cut, so it waits; alone, 250 comes in pieces."""
    stepper = Stepper(policy_spec("nano", batch__token_budget=100, cache__prefix="none"), ROOMY)
    for index, prompt in enumerate((60, 60, 250)):
        stepper.submit(index, prompt, limit=1)
    assert [stepper.step() for _ in range(5)] == [{0: 60}, {1: 60}, {2: 100}, {2: 100}, {2: 50}]


def test_sglang_cuts_at_pages_and_returns_to_the_back() -> None:
    """Budget 40, page 16: a prompt of 100 is cut at 32."""
    stepper = Stepper(policy_spec("sglang", batch__token_budget=40), ROOMY)
    stepper.submit(0, 100, limit=5)
    assert stepper.step() == {0: 32}


def test_reserve_max_never_preempts_where_known_tokens_do() -> None:
    """20 requests of 30 + 60 in 20 blocks of 16: prompt-only admission preempts, full reservation never."""
    requests = [request(index, 30, 60, at_ms=index) for index in range(20)]
    counts = {
        name: len(
            play(policy_spec(name, cache__prefix="none"), requests, capacity=Capacity(20, 1000)).sink.of(Preempted)
        )
        for name in ("reserve_max", "nano")
    }
    assert counts["reserve_max"] == 0
    assert counts["nano"] > 0


def test_an_urgent_request_takes_a_slot_with_exactly_one_preemption() -> None:
    """Two slots, two background requests; an urgent one starts within one step. An equal one causes no preemption."""
    for priority, preempted in ((0, 1), (5, 0)):
        stepper = Stepper(policy_spec("vllm_v1", order__by="urgency", batch__size=2), ROOMY)
        for index in range(2):
            stepper.submit(index, 10, priority=5)
        stepper.step()
        stepper.submit(2, 10, limit=10, priority=priority, arrival_ns=0)
        granted = [2 in stepper.step() for _ in range(5)]
        assert granted[0] is bool(preempted)
        assert sum(isinstance(record, Preempted) for record in stepper.records) == preempted


def test_shortest_first_lets_nobody_starve() -> None:
    """A request of 100 tokens, keyed 1 ms + 100 x 10 ms, is passed by requests of 5 tokens keyed arrival + 50 ms.

    They take longer to serve than the 20 ms between them, so that some always wait; those that arrive before 951 ms, at
    0, 20, ..., 940 ms, pass, however many more follow.
    """
    short = [request(0, 10, 5), *(request(index, 10, 5, at_ms=20 * (index - 1)) for index in range(2, 121))]
    spec = policy_spec("vllm_v1", order__by="shortest", batch__size=1)
    played = play(spec, [short[0], request(1, 10, 100, at_ms=1), *short[1:]], target=profile(base_ms=4.5))
    order = [r.request for r in played.sink.of(Admitted)]
    assert order[: order.index(1)] == [0, *range(2, 49)]


def test_a_pool_of_1045_blocks_ends_under_every_admission_rule() -> None:
    """The size at which a peer never ended: whole worst case, whole prompt, known tokens, estimate; all finish."""
    requests = [request(index, 300 + 13 * (index % 40), 150, at_ms=15 * index) for index in range(80)]
    target = profile(base_ms=5, prefill_token_ms=0.02)
    for name in ("reserve_max", "sarathi", "vllm_v1", "sglang"):
        played = play(policy_spec(name), requests, capacity=Capacity(1045, 4096), target=target, law_interval=200)
        assert played.report.outcomes == {"finished": 80}


def test_an_estimate_never_admits_into_blocks_that_are_still_being_written() -> None:
    """Pool of 2, two steps in flight: an aborted request's blocks wait behind its step, and nobody else runs.

    The estimate alone would let the next one in; it has to wait for the step.
    """
    stepper = Stepper(policy_spec("sglang", cache__prefix="none"), Capacity(2, 100), depth=2)
    stepper.submit(0, 30, limit=2)
    planned = stepper.plan()
    stepper.instance.abort(0)
    stepper.submit(1, 30, limit=2)
    assert stepper.try_plan() is None
    stepper.complete(planned)
    assert stepper.step() == {1: 30}
