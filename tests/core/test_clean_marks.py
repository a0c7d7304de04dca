"""Marks of the pool: with too few clean blocks, cached content goes before a request needs its room."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.drive.driver import Driver
from scheduler_core.evidence.finalise import summarise
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.workload import Tier
from scheduler_core.testing.builders import ListSink, Stepper, play, policy_spec, profile, request
from scheduler_core.types.errors import InputError
from scheduler_core.types.plan import BlockCopy
from scheduler_core.types.records import RunStarted, Step
from tests.core.test_fastforward import REQUESTS, build, fused, plain
from tests.core.test_host_tier import INDEXES, Contents
from tests.core.test_recorded import recorded, spelled_out, step_by_step


def marked(low: float = 0.5, high: float | None = None, **rest: Any) -> Any:
    marks = {"cache__block_size": 4, "cache__clean_low": low, "cache__clean_high": high}
    return policy_spec("vllm_v1", **{**marks, **rest})


@pytest.mark.parametrize(
    ("index", "high", "evicted", "found"),
    [("hash", None, 2, 4), ("hash", 0.5, 2, 4), ("hash", 0.7, 3, 0), ("radix", None, 3, 0)],
)
def test_below_the_low_mark_content_goes_until_the_high_mark_is_reached(
    index: str, high: float | None, evicted: int, found: int
) -> None:
    """Pool of 6 blocks of 4, low mark 3. A's 12 tokens take blocks 0, 1, 2, and 3 clean ones are left: none is evicted.

    A has ended, its blocks are cached. B's 8 tokens take 2 clean ones, 1 is left, below 3. Until 3 are clean, A's two
    last blocks go, and its prompt finds 4 tokens then. With 0.7 of the pool, 4, all three go, and nothing is found; as
    with the tree, which gives up leaves as a whole.
    """
    drive = Stepper(marked(high=high, cache__prefix=index), Capacity(6, 17))
    drive.submit(0, 12, limit=1, seed=7)
    planned = drive.plan()
    assert (planned.evicted_ahead, planned.occupancy.kv_free) == (0, 3)
    drive.complete(planned)
    drive.submit(1, 8, limit=1, seed=8)
    planned = drive.plan()
    now = planned.occupancy
    assert planned.evicted_ahead == evicted
    assert (now.kv_used, now.kv_cached, now.kv_free) == (2, 3 - evicted, 1 + evicted)
    drive.complete(planned)
    drive.submit(2, 12, limit=1, seed=7)
    assert drive.step() == {2: 12 - found}


def test_what_is_evicted_ahead_is_copied_ahead() -> None:
    """As above with a host tier: B's step copies A's blocks 2 and 1 to slots 0 and 1.

    B ends and leaves 2 cached, beside A's block 0, and 3 clean. C's 12 tokens take those 3; nothing is evicted for it,
    and until 3 are clean again A's block 0, released before B's, goes to slot 2, and B's two to slots 3 and 4.
    """
    drive = Stepper(marked(cache__host_prefix_blocks=8), Capacity(6, 17))
    copied = []
    for number, prompt in enumerate((12, 8, 12)):
        drive.submit(number, prompt, limit=1, seed=7 + number)
        planned = drive.plan()
        copied.append(planned.plan.copies_out)
        drive.complete(planned)
    assert copied[0] == ()
    assert copied[1] == (BlockCopy(2, 0), BlockCopy(1, 1))
    assert [copy.target for copy in copied[2]] == [2, 3, 4]
    assert copied[2][0].source == 0


def test_the_figure_counts_what_went_ahead() -> None:
    """The scene of the first test, played: 2 blocks."""
    requests = [request(n, prompt, 1, at_ms=5 * n, seed=n) for n, prompt in enumerate((12, 8))]
    played = play(marked(), requests, capacity=Capacity(6, 17))
    assert [step.evicted_ahead for step in played.sink.of(Step)] == [0, 2]
    started = RunStarted("r", 1, "p", "q", {}, {}, "simulation", "modelled", 2, 6, 4, 2048)
    summary = summarise([started, *played.sink.records], arm="a", repeat=0, tiers={"default": Tier()})
    assert summary.metrics["evicted_ahead_blocks"].value == 2
    assert summary.audit.passed, summary.audit.violations


@pytest.mark.parametrize(
    ("setting", "given", "message"),
    [
        ("clean_low", {"cache__prefix": "none"}, "holds"),
        ("clean_high", {"cache__clean_high": 0.2}, "below clean_low"),
        ("clean_high", {"cache__clean_low": 0, "cache__clean_high": 0.2}, "set cache.clean_low"),
    ],
)
def test_marks_that_mean_nothing_are_refused(setting: str, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=rf"cache\.{setting}.*{message}"):
        resolve(marked(**given))


def test_a_preset_without_a_cache_takes_no_marks() -> None:
    with pytest.raises(InputError, match=r"cache\.clean_low"):
        resolve(policy_spec("sarathi", cache__clean_low=0.5))


MARKED = st.builds(
    lambda name, marks, prefix, size, budget, slots, swap, order: policy_spec(
        name,
        order__by=order,
        batch__size=size,
        batch__token_budget=budget,
        cache__block_size=4,
        cache__clean_low=marks[0],
        cache__clean_high=marks[1],
        cache__prefix=prefix,
        cache__host_prefix_blocks=slots,
        cache__preemption="swap" if swap else "recompute",
        cache__host_blocks=swap,
    ),
    st.sampled_from(["vllm_v1", "sglang"]),
    st.sampled_from([(0.2, None), (0.3, 0.8), (1, None)]),
    st.sampled_from(INDEXES),
    st.integers(1, 5),
    st.sampled_from([8, 24]),
    st.sampled_from([0, 0, 3]),
    st.sampled_from([0, 0, 4]),
    st.sampled_from(["arrival", "longest_prefix"]),
)


@settings(max_examples=60)
@given(spec=MARKED, rows=REQUESTS, blocks=st.integers(6, 20), scale=st.sampled_from([0, 0.1, 1]))
def test_fast_forward_changes_nothing(spec: Any, rows: Any, blocks: Any, scale: Any) -> None:
    """Seeds repeat, so that content which went ahead of need is missed."""
    requests = [item if n % 3 else replace(item, seed=1) for n, item in enumerate(build(rows, scale))]
    capacity = Capacity(blocks, 60)
    expected_steps, expected_rows = plain(spec, requests, capacity)
    steps, actual_rows, _ = fused(spec, requests, capacity)
    assert steps == expected_steps
    assert actual_rows == expected_rows


@settings(max_examples=60)
@given(
    rows=REQUESTS,
    blocks=st.integers(6, 12),
    slots=st.sampled_from([0, 2, 20]),
    low=st.sampled_from([0.2, 0.6, 1]),
    prefix=st.sampled_from(INDEXES),
)
def test_after_each_step_the_pool_is_clean_enough_or_nothing_is_cached(
    rows: Any, blocks: Any, slots: Any, low: Any, prefix: Any
) -> None:
    """Contents are followed through every copy and step, with the laws checked after each."""
    requests = [item if n % 3 else replace(item, seed=1) for n, item in enumerate(build(rows, 0.1))]
    spec = marked(low, cache__prefix=prefix, cache__host_prefix_blocks=slots)
    sink, instance = ListSink(), build_instance(spec, Capacity(blocks, 60, profile()))
    driver = Driver(
        instance=instance, requests=requests, executor=Contents(requests), sink=sink, stop=lambda: False,
        law_interval=1,
    )  # fmt: skip
    assert driver.run().complete
    for step in sink.of(Step):
        assert step.kv_free >= int(low * blocks) or not step.kv_cached


@settings(max_examples=60)
@given(spec=MARKED, rows=REQUESTS, blocks=st.integers(6, 20), scale=st.sampled_from([0, 0.1, 1]))
def test_evidence_by_stretches_is_the_same(spec: Any, rows: Any, blocks: Any, scale: Any) -> None:
    """Steps that copy or evict ahead of need stand alone in it."""
    requests = [item if n % 3 else replace(item, seed=1) for n, item in enumerate(build(rows, scale))]
    capacity = Capacity(blocks, 60)
    assert spelled_out(recorded(spec, requests, capacity)) == step_by_step(spec, requests, capacity)
