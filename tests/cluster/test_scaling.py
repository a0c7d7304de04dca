"""Starting and draining replicas: sustained pressure only, staged cold starts, nobody lost on the way in."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import play_cluster, policy_spec, profile, request
from scheduler_core.types.cluster_records import Routed, Scaled
from scheduler_core.types.records import Finished
from scheduler_core.types.time import NS_PER_S
from tests.cluster.test_outages import audited
from tests.cluster.test_replicas import summary_of

COLD = {"place_s": 1, "image_s": 0, "weights_s": 2, "graphs_s": 0}
SLOW = profile(base_ms=100)


def scaled(**rules: Any) -> Any:
    """A spec of replicas that scale."""
    given_ = {"least": 1, "up_at": 4, "down_at": 1, "window_s": 2, "every_s": 1, "cooldown_s": 5, **rules}
    return policy_spec("vllm_v1", pools__layout="replicas", pools__scale=given_, batch__size=2)


def powers(sink: Any) -> list[tuple[float, int, str]]:
    """(seconds, instance, power) of each change."""
    return [(record.at_ns / NS_PER_S, record.instance, record.power) for record in sink.of(Scaled)]


def test_sustained_pressure_starts_what_is_missing_after_its_cold_start() -> None:
    """Ten requests at once for one instance: pressure 10 at every look, above 4 for two seconds at second 3.

    10 / 4 asks for 3 instances, so two are started; 1 s to place and 2 s of weights later, at 6 s, they are on.
    """
    requests = [request(i, 4, 100) for i in range(10)]
    _, sink, _ = play_cluster(scaled(), requests, {"a": 4}, target=SLOW, cold_start=COLD)
    assert powers(sink)[:8] == [
        (0, 0, "on"),
        (0, 1, "off"),
        (0, 2, "off"),
        (0, 3, "off"),
        (3, 1, "starting"),
        (3, 2, "starting"),
        (6, 1, "on"),
        (6, 2, "on"),
    ]
    assert {record.instance for record in sink.of(Routed)} == {0}


def test_a_short_burst_starts_nothing() -> None:
    """Ten requests of one step each are over within a second; pressure is beyond its bound at no two looks."""
    requests = [request(i, 4, 1) for i in range(10)]
    late = [request(10, 4, 1, at_ms=20_000)]
    _, sink, _ = play_cluster(scaled(), [*requests, *late], {"a": 4}, target=SLOW, cold_start=COLD)
    assert [power for _, _, power in powers(sink)] == ["on", "off", "off", "off"]


def test_a_drained_instance_ends_what_it_has_and_gets_nothing_new() -> None:
    """A burst starts a second instance; when it is over one of them is drained, and only the other gets requests."""
    burst = [request(i, 4, 60, at_ms=10 * i) for i in range(8)]
    later = [request(8 + i, 4, 30, at_ms=12_000 + 4_000 * i) for i in range(12)]
    report, sink, _ = play_cluster(scaled(up_at=3), [*burst, *later], {"a": 2}, target=SLOW, cold_start=COLD)
    assert report.outcomes == {"finished": 20}
    drained = [(at, index) for at, index, power in powers(sink) if power == "draining"]
    assert drained
    at, index = drained[0]
    back = min(
        (at_ for at_, index_, power in powers(sink) if index_ == index and power == "on" and at_ > at), default=1e9
    )
    assert not [r for r in sink.of(Routed) if r.instance == index and at < r.at_ns / NS_PER_S < back]


def test_instances_of_a_pool_that_does_not_scale_are_held_all_the_time() -> None:
    """Decode has one of two instances on, prefill (2 and 3) does not scale: three are held from 0 to the end."""
    spec = policy_spec("vllm_v1", pools__layout="split", pools__prefill=("p",), pools__scale_decode={"least": 1})
    _, sink, cluster = play_cluster(spec, [request(0, 4, 10), request(1, 4, 10)], {"d": 2, "p": 2}, target=SLOW)
    summary = audited(sink, cluster, 2, 1000)
    hours, window_s = summary.metrics["device_hours"].value, summary.metrics["window_s"].value
    assert hours == pytest.approx(3 * window_s / 3600)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 40), st.integers(0, 40_000)), min_size=1, max_size=25),
    st.sampled_from(["queue", "busy"]),
    st.sampled_from(["round_robin", "least_loaded", "two_choices", "sticky", "prefix", "first_token"]),
)
def test_nobody_is_lost_while_instances_come_and_go(rows: Any, by: str, route: str) -> None:
    requests = [request(i, prompt, output, at_ms=at) for i, (prompt, output, at) in enumerate(rows)]
    bounds = {"up_at": 2, "down_at": 1} if by == "queue" else {"up_at": 0.6, "down_at": 0.3}
    rules = {"by": by, "window_s": 1, "every_s": 0.5, "cooldown_s": 1, **bounds}
    spec = policy_spec(
        "vllm_v1",
        pools__layout="replicas",
        pools__route=route,
        pools__scale=rules,
        batch__size=2,
        cache__block_size=4,
    )
    _, sink, cluster = play_cluster(spec, requests, {"a": 3}, target=SLOW, cold_start=COLD, capacity=Capacity(20, 1000))
    assert sorted(record.request for record in sink.of(Finished)) == list(range(len(requests)))
    described = [{"name": member.name, "group": "a", "kv_blocks": 20} for member in cluster.members]
    summary = summary_of(sink.records, described, len(requests), 60)
    assert summary.audit.passed, summary.audit.violations
    held, ceiling = summary.metrics["device_hours"].value, 3 * summary.metrics["window_s"].value / 3600
    assert held is not None
    assert 0 <= held <= ceiling * (1 + 1e-9)
    utilisation = summary.metrics["pool_utilisation"].value
    assert utilisation is None or utilisation <= 1 + 1e-9
