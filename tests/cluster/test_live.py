"""Live samples of clusters: where requests are while they are handed over, stopped and taken back."""

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.evidence.live import LiveSampler
from scheduler_core.policies.presets import Capacity
from scheduler_core.spec.job import Sample
from scheduler_core.testing.builders import play_cluster
from scheduler_core.types.records import Arrived, RunStarted
from scheduler_core.types.time import NS_PER_S
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
