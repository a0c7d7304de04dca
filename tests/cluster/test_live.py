"""Live samples of clusters: where requests are while they are handed over, stopped and taken back."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.evidence.live import sampler as live
from scheduler_core.evidence.live.sampler import LiveSampler
from scheduler_core.policies.presets import Capacity
from scheduler_core.spec.job import Sample
from scheduler_core.testing.builders import play_cluster, policy_spec, request
from scheduler_core.types.records import Arrived, RunStarted
from scheduler_core.types.time import NS_PER_MS, NS_PER_S
from tests.cluster.test_handoff import GROUPS, split
from tests.cluster.test_replicas import COSTLY, REQUESTS


@settings(max_examples=40)
@given(REQUESTS, st.sampled_from(["transfer", "recompute", "stay"]))
def test_every_request_is_in_exactly_one_place(requests: Any, handoff: Any) -> None:
    """Waiting, running, paused and done add up to what has arrived, whatever way a computed prompt goes."""
    spec = split(pools__handoff=handoff)
    _, sink, _ = play_cluster(spec, requests, GROUPS, target=COSTLY, capacity=Capacity(20, 1000))
    samples: list[Sample] = []
    sampler = LiveSampler(interval_ns=5_000_000, total=len(requests), on_sample=samples.append)
    described = [{"group": group, "kv_blocks": 20} for group in GROUPS]
    started = RunStarted(
        "run", 1, "plan", "policy", {}, {}, "simulation", "modelled", 1, 20, 16, 40, instances=described
    )
    for record in [started, *sink.records]:
        sampler.write(record)
    sampler.flush()
    arrivals = [record.at_ns for record in sink.of(Arrived)]
    for sample in samples:
        assert sample.waiting is not None
        assert sample.running is not None
        assert sample.paused is not None
        assert sample.waiting >= 0
        assert sample.waiting == sum(pool.waiting for pool in sample.pools.values())
        assert sample.running == sum(pool.running for pool in sample.pools.values())
        there = sample.waiting + sample.running + sample.paused + sample.done
        assert there <= sum(at <= round(sample.t_s * NS_PER_S) for at in arrivals)
    assert samples[-1].done == len(requests)
    assert samples[-1].waiting == samples[-1].running == samples[-1].paused == 0
    assert all(left.done <= right.done for left, right in pairwise(samples))


@settings(max_examples=20)
@given(REQUESTS, st.integers(1, 40))
def test_records_may_be_folded_one_by_one_or_together(requests: Any, interval_ms: int) -> None:
    """The same samples are emitted by the same records, however many wait to be folded."""
    _, sink, _ = play_cluster(split(), requests, GROUPS, target=COSTLY, capacity=Capacity(20, 1000))
    emitted: list[tuple[list[Sample], list[int]]] = []
    for together in (1, 7, 10**6):
        samples: list[Sample] = []
        after_each: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(live, "_TOGETHER", together)
            sampler = LiveSampler(interval_ns=interval_ms * NS_PER_MS, total=1, on_sample=samples.append)
            for record in sink.records:
                sampler.write(record)
                after_each.append(len(samples))
            sampler.flush()
        emitted.append((samples, after_each))
    assert emitted[0] == emitted[1] == emitted[2]
    assert emitted[0][0][-1].done == len(requests)


def test_an_instance_that_is_off_is_not_idle() -> None:
    """One of three instances is on and computes all the time in steps of 1 ms: the pool is as busy as that one is, as
    the figures of the run have it, which are over the time that instances are held."""
    spec = policy_spec("vllm_v1", pools__layout="replicas", pools__scale={"least": 1, "up_at": 100})
    _, sink, _ = play_cluster(spec, [request(0, 100, 100)], {"a": 3})
    samples: list[Sample] = []
    sampler = LiveSampler(interval_ns=50_000_000, total=1, on_sample=samples.append)
    described = [{"group": "a", "kv_blocks": 1000}] * 3
    for record in [
        RunStarted("run", 1, "plan", "policy", {}, {}, "simulation", "modelled", 1, 20, 16, 40, instances=described),
        *sink.records,
    ]:
        sampler.write(record)
    pool = samples[0].pools["a"]
    assert samples[0].busy_share == pool.busy_share == 49 / 50  # the step under way at 50 ms is not told yet
    assert pool.on == 1


def test_a_sample_shows_what_moves() -> None:
    """1 ms a step; 100 tokens of 1 kB over 1 MB/s are on the way from 1 ms to 101. Sampled each 50 ms: one request on
    its way and nothing landed; then, at 150, nobody, and 100 kB in 150 ms. Both instances are on."""
    link: dict[str, Any] = {"link_gb_per_s": 0.001, "link_latency_us": 0, "kv_bytes_per_token": 1000}
    _, sink, _ = play_cluster(split(), [request(0, 100, 100)], GROUPS, **link)
    samples: list[Sample] = []
    sampler = LiveSampler(interval_ns=50_000_000, total=1, on_sample=samples.append)
    described = [{"group": group, "kv_blocks": 1000} for group in GROUPS]
    for record in [
        RunStarted("run", 1, "plan", "policy", {}, {}, "simulation", "modelled", 1, 20, 16, 40, instances=described),
        *sink.records,
    ]:
        sampler.write(record)
    moving, over = samples[0], next(sample for sample in samples if sample.t_s == 0.15)
    assert (moving.on_the_way, moving.moved_bytes_per_s) == (1, 0)
    assert (over.on_the_way, over.moved_bytes_per_s) == (0, 100_000 / 0.15)
    assert (over.fallbacks, over.instance_changes) == (0, 0)
    assert {group: pool.on for group, pool in over.pools.items()} == {"a": 1, "b": 1}
