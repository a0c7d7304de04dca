"""Faults reported in public against serving engines, as scenes on real kernels. The rules themselves, step by step, are
in `tests.core.test_public_faults`; here what is computed, held and emitted must follow them.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.drive.driver import Driver
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.resolving import resolve
from scheduler_core.sched.instance import Instance
from scheduler_core.testing.builders import ListSink, policy_spec, request
from scheduler_core.types.plan import StepPlan
from scheduler_core.types.reasons import Reject
from scheduler_core.types.records import Admitted, Finished, Preempted, Step
from scheduler_core.types.time import NS_PER_MS, NS_PER_S, Ns
from tests.engine.conftest import settings_for
from tests.engine.playing import alone

SIZE = 16


@contextmanager
def engine(blocks: int, size: int = SIZE) -> Iterator[TorchExecutor]:
    sizes = {"kv_blocks": blocks, "host_blocks": 0, "block_size": size, "prefix_block_size": size}
    made = TorchExecutor(settings_for("tiny", **sizes))
    made.load()
    made.start()
    yield made
    assert made.tables() == {}, "every block is free again"


def serve(executor: TorchExecutor, requests: Any, **settings: Any) -> tuple[ListSink, Instance]:
    settings.setdefault("cache__block_size", executor.settings.block_size)
    capacity = Capacity(executor.settings.kv_blocks, executor.info.model_length)
    instance = build_instance(resolve(policy_spec(settings.pop("policy", "vllm_v1"), **settings)), capacity)
    sink = ListSink()
    Driver(
        instance=instance, requests=requests, executor=executor, sink=sink, stop=lambda: False, law_interval=20,
        prefix_block_size=executor.settings.block_size,
    ).run()  # fmt: skip
    assert instance.occupancy().kv_used == 0
    return sink, instance


def by_request(sink: ListSink) -> list[Finished]:
    return sorted(sink.of(Finished), key=lambda record: record.request)


@pytest.mark.parametrize("policy", ["vllm_v1", "static"])
def test_1_a_request_larger_than_the_pool_blocks_nobody(policy: str) -> None:
    """49 blocks of 16: 1,002 + 1 tokens need 63; five small ones behind it finish with their tokens."""
    with engine(49) as executor:
        requests = [request(0, 1002, 1), *(request(index, 20, 50) for index in range(1, 6))]
        sink, _ = serve(executor, requests, policy=policy)
        refused, *rest = by_request(sink)
        assert (refused.reason, refused.need, refused.have) == (Reject.NEVER_FITS_POOL, 63, 49)
        assert [(record.outcome, len(record.tokens or [])) for record in rest] == [("finished", 50)] * 5


def test_2_3_and_19_overload_on_a_small_pool_ends_and_counts_each_token_once() -> None:
    """30 blocks, 40 requests of 64 + 32 (6 blocks each when done) at once: everybody ends, with exactly its tokens and
    the tokens it has alone; what is computed again is counted apart.
    """
    requests = [request(index, 64, 32) for index in range(40)]
    with engine(30) as executor:
        sink, _ = serve(executor, requests, cache__prefix="none", batch__token_budget=256)
        ended = by_request(sink)
        assert Counter(record.outcome for record in ended) == {"finished": 40}
        emitted = Counter(row[0] for step in sink.of(Step) for row in step.grants if row[5])
        assert emitted == dict.fromkeys(range(40), 32)
        preempted = sink.of(Preempted)
        assert preempted
        assert max(Counter(record.request for record in preempted).values()) <= 8
        by_step = {step.id: {row[0] for row in step.grants} for step in sink.of(Step)}
        assert all(record.request not in by_step[record.step] for record in preempted)
        lost = sum(record.tokens_lost for record in preempted)
        again = sum(row[3] for step in sink.of(Step) for row in step.grants if row[4] == "recompute")
        assert lost <= again
        for index in {record.request for record in preempted[:5]}:
            expected = alone(executor, request(1000 + index, 64, 32, seed=index))
            end = min([*expected.ties, 32])
            assert (ended[index].tokens or [])[:end] == expected.tokens[:end]


def test_4_and_5_the_urgent_one_takes_a_place_and_nobody_loses_a_turn() -> None:
    """Two places, both taken by background requests; an urgent one comes: one preemption, and in every step each
    running request is granted exactly once.
    """
    for at_ms in (5, 20, 80, 320):  # a busy machine may not have begun yet when it comes
        background = [request(index, 20, 200, priority=5) for index in range(2)]
        urgent = request(2, 20, 8, at_ms=at_ms, priority=0)
        with engine(60) as executor:
            sink, _ = serve(executor, [*background, urgent], order__by="urgency", batch__size=2)
        if sink.of(Step)[0].available_ns < at_ms * NS_PER_MS:
            break
    assert [record.outcome for record in by_request(sink)] == ["finished"] * 3
    assert len(sink.of(Preempted)) == 1
    for step in sink.of(Step):
        granted = Counter(row[0] for row in step.grants)
        assert set(granted.values()) == {1}
        assert len(granted) == step.running


def test_6_a_prompt_over_the_budget_without_chunking_is_refused() -> None:
    with engine(60) as executor:
        requests = [request(0, 128, 3), request(1, 129, 3)]
        sink, _ = serve(executor, requests, batch__chunked_prefill=False, batch__token_budget=128)
        fits, refused = by_request(sink)
        assert fits.outcome == "finished"
        assert (refused.reason, refused.need, refused.have) == ("over_step_budget", 129, 128)


def test_7_no_step_goes_over_its_budget_and_prompts_fill_it() -> None:
    with engine(60) as executor:
        sink, _ = serve(executor, [request(i, 30 + 7 * i, 6) for i in range(8)], batch__token_budget=40)
        steps = [sum(row[3] for row in step.grants) for step in sink.of(Step)]
        assert max(steps) == 40
        prompts = [step for step in sink.of(Step) if any(row[4] == "prefill" for row in step.grants)]
        assert all(sum(row[3] for row in step.grants) == 40 for step in prompts[:-1])


@pytest.mark.parametrize(("age_tokens", "before_it"), [(16, 3), (0, 20)])
def test_8_cached_prompts_overtake_a_cold_one_only_so_often(age_tokens: int, before_it: int) -> None:
    """One place. Two clients send a prompt with 64 cached tokens as soon as they have their answer, ten each, so that
    one of them always waits; a cold prompt comes with their first. A request takes two steps.

    With 16 tokens of age a step a cached one counts 64 and 16 for each of the 2 steps that it waits, 96 in all. The
    cold one has as many after 6 steps, in which three have gone, and came earlier. Without age it comes last. Its
    tokens are those that it has alone.
    """
    cached = [
        request(index, 65, 2, seed=0, prefix_blocks=(1, 2, 3, 4), after=(index - 2,) if index > 1 else ())
        for index in range(20)
    ]
    cold = request(20, 65, 2, seed=5)
    with engine(40) as executor:
        order = {"order__by": "longest_prefix", "order__age_tokens": age_tokens, "batch__size": 1}
        sink, _ = serve(executor, [*cached, cold], policy="sglang", **order)
        admitted = [record.request for record in sink.of(Admitted)]
        assert admitted.index(20) == before_it
        ended = by_request(sink)
        assert Counter(record.outcome for record in ended) == {"finished": 21}
        assert all(record.tokens == ended[0].tokens for record in ended[:20])
        expected = alone(executor, request(1000, 65, 2, seed=5))
        assert ended[20].tokens == expected.tokens or expected.ties


def test_9_a_fully_cached_prompt_still_computes_something() -> None:
    """64 tokens in blocks of 16, sent twice: the second finds 48 and computes 16; both have the same first token."""
    requests = [request(i, 64, 4, at_ms=40.0 * i, seed=0, prefix_blocks=(1, 2, 3, 4)) for i in range(2)]
    with engine(40) as executor:
        sink, _ = serve(executor, requests)
        first, second = by_request(sink)
        assert [record.hit_tokens for record in sink.of(Admitted)] == [0, 48]
        assert first.tokens == second.tokens


def test_10_recomputation_is_no_prefix_hit() -> None:
    draw = random.Random(7)
    requests = [request(i, draw.randint(20, 100), draw.randint(20, 60)) for i in range(40)]
    with engine(30) as executor:
        sink, _ = serve(executor, requests)
        admitted = sink.of(Admitted)
        assert sum(record.hit_tokens for record in admitted if not record.resumed) == 0
        assert any(record.resumed for record in admitted)


@pytest.mark.parametrize(("limit", "outcome", "tokens"), [(40, "rejected", 0), (25, "finished", 25)])
def test_11_one_request_that_fills_the_pool_takes_nobody_down(limit: int, outcome: str, tokens: int) -> None:
    """64 tokens of KV: 40 + 40 can never be held; 40 + 25 can, as the last token's KV is never written."""
    with engine(4) as executor:
        sink, _ = serve(executor, [request(0, 40, limit), request(1, 20, 5, at_ms=1)])
        first, second = by_request(sink)
        assert (first.outcome, first.output_tokens) == (outcome, tokens)
        assert (second.outcome, second.output_tokens) == ("finished", 5)


class _SlowLast(TorchExecutor):
    """The third step takes at least until 0.4 s after the start of the run."""

    def launch(self, plan: StepPlan) -> None:
        if plan.id == 2:
            self.wait_until(400 * NS_PER_MS)
        super().launch(plan)

    def wait_until(self, at_ns: Ns) -> None:
        time.sleep(max(0, at_ns - self.now_ns()) / NS_PER_S)


def test_15_a_cancel_during_the_last_step_is_a_cancel() -> None:
    """20 requests of 3 tokens; every client gives up at 0.4 s, while the third step runs."""
    executor = _SlowLast(settings_for("tiny", kv_blocks=40, host_blocks=0, block_size=SIZE))
    executor.load()
    executor.start()
    requests = [request(index, 10, 3, cancel_ns=400 * NS_PER_MS) for index in range(20)]
    sink, _ = serve(executor, requests)
    assert Counter(record.outcome for record in sink.of(Finished)) == {"cancelled": 20}
    assert [record.output_tokens for record in sink.of(Finished)] == [2] * 20
    assert executor.tables() == {}
