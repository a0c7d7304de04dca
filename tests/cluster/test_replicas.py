"""Several instances behind a router: the same as one where there is one, lawful and complete where there are more."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.evidence.finalise import summarise
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.topology import InstanceGroup, Topology
from scheduler_core.testing.builders import play, play_cluster, policy_spec, profile, request
from scheduler_core.types.cluster_records import Routed
from scheduler_core.types.records import Finished, Record, RunFinished, RunStarted, Step

ROUTES = ["round_robin", "least_loaded", "two_choices", "sticky", "prefix", "first_token"]
COSTLY = profile(base_ms=0.7, prefill_token_ms=0.013, decode_request_ms=0.031, context_token_ms=0.0017, acceptance=0.7)

REQUESTS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=14
).map(
    lambda rows: [
        request(
            i, prompt, output, at_ms=at / 2, session=session, prefix_blocks=(session + 1, 90 + session)[: prompt // 8]
        )
        for i, (prompt, output, at, session) in enumerate(rows)
    ]
)


def summary_of(
    records: list[Record], instances: list[dict[str, Any]], offered: int, blocks: int, spec: Any = None, **topology: Any
) -> Any:
    """The audited summary of a played cluster; with ``spec`` the audit knows its policy, and what of the topology."""
    policy = {} if spec is None else resolve(spec).canonical()
    target = {"modelled": {"topology": topology}}
    started = RunStarted(
        "run", 1, "plan", "policy", policy, target, "simulation", "modelled", offered, blocks, 4, 40,
        instances=instances,
    )  # fmt: skip
    return summarise([started, *records], arm="a", repeat=0, tiers={})


@settings(max_examples=60, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(["vllm_v1", "static", "sarathi", "sglang", "vtc"]),
    st.sampled_from(ROUTES),
    st.sampled_from([9, 60]),
    st.lists(st.tuples(st.integers(0, 13), st.integers(0, 15_000_000)), max_size=3),
)
def test_a_cluster_of_one_is_the_instance_itself(
    requests: Any, policy: str, route: str, blocks: int, cancels: Any
) -> None:
    """Whatever the router: same records in the same order, but for those that say where a request went."""
    capacity = Capacity(blocks, 1000)
    cancels = [(number, at) for number, at in dict(cancels).items() if number < len(requests)]
    options = {"batch__size": 3, "batch__token_budget": 40, "cache__block_size": 4}
    alone = play(policy_spec(policy, **options), requests, capacity=capacity, target=COSTLY, cancels=cancels)
    spec = policy_spec(policy, **options, pools__layout="replicas", pools__route=route)
    _, sink, _ = play_cluster(spec, requests, {"a": 1}, capacity=capacity, target=COSTLY, cancels=cancels)
    got = [record for record in sink.records if not isinstance(record, Routed | RunFinished)]
    assert got == [record for record in alone.sink.records if not isinstance(record, RunFinished)]


@settings(max_examples=60, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(ROUTES),
    st.integers(2, 4),
    st.sampled_from([0, 3]),
    st.lists(st.tuples(st.integers(0, 13), st.integers(0, 15_000_000)), max_size=3),
)
def test_every_request_ends_once_and_the_audit_agrees(
    requests: Any, route: str, instances: int, look_every_ms: float, cancels: Any
) -> None:
    """All laws are checked after every step; the audit replays the records of all instances."""
    cancels = [(number, at) for number, at in dict(cancels).items() if number < len(requests)]
    spec = policy_spec(
        "vllm_v1",
        batch__size=3,
        batch__token_budget=40,
        cache__block_size=4,
        pools__layout="replicas",
        pools__route=route,
        pools__look_every_ms=look_every_ms,
    )
    capacity = Capacity(12, 1000)
    report, sink, cluster = play_cluster(
        spec, requests, {"a": instances}, capacity=capacity, target=COSTLY, cancels=cancels
    )
    assert sum(report.outcomes.values()) == len(requests)
    assert not cluster.open_requests()
    assert {load.load.open for load in cluster.members} == {0}
    described = [{"name": member.name, "group": "a", "kv_blocks": 12} for member in cluster.members]
    summary = summary_of(sink.records, described, len(requests), 12 * instances)
    assert summary.audit.passed, summary.audit.violations
    assert summary.pools["a"].instances == instances


def test_two_instances_take_turns_and_run_side_by_side() -> None:
    """Four requests of 3 tokens at 1 ms a step, in turn on two instances: each runs two at once and ends at 3 ms.

    Alone in a batch of one they would end at 3, 6, 9 and 12 ms.
    """
    spec = policy_spec("vllm_v1", pools__layout="replicas", pools__route="round_robin")
    _, sink, _ = play_cluster(spec, [request(i, 4, 3) for i in range(4)], {"a": 2})
    assert [record.instance for record in sink.of(Routed)] == [0, 1, 0, 1]
    assert {record.at_ns for record in sink.of(Finished)} == {3_000_000}
    assert [(step.instance, step.id) for step in sink.of(Step)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_the_least_loaded_instance_gets_the_next() -> None:
    """Request 0 stays; 1 goes to the other, ends at 1 ms; so 2, at 2 ms, joins the empty one, not the one of 0."""
    spec = policy_spec("vllm_v1", pools__layout="replicas", pools__route="least_loaded")
    requests = [request(0, 4, 50), request(1, 4, 1), request(2, 4, 1, at_ms=2)]
    _, sink, _ = play_cluster(spec, requests, {"a": 2})
    routed = sink.of(Routed)
    assert [(record.instance, record.score, record.next_best) for record in routed] == [(0, 0, 0), (1, 0, 1), (1, 0, 1)]


def test_a_router_that_looks_rarely_sends_a_burst_to_one_place() -> None:
    """Seen once at 0 ms and then only after 100 ms, both look idle all the time: everything goes to the first."""
    spec = policy_spec(
        "vllm_v1", pools__layout="replicas", pools__route="least_loaded", pools__look_every_ms=100, batch__size=64
    )
    _, sink, _ = play_cluster(spec, [request(i, 4, 30, at_ms=i) for i in range(6)], {"a": 2})
    assert [record.instance for record in sink.of(Routed)] == [0] * 6


def test_turns_of_a_session_stay_together_and_equal_prompts_meet() -> None:
    """Sessions 7 and 8 start on different instances and stay there; so do prompts that begin alike."""
    turns = [request(i, 32, 2, at_ms=3 * i, session=7 + i % 2, prefix_blocks=(i % 2, 10 + i % 2)) for i in range(6)]
    for route in ("sticky", "prefix"):
        spec = policy_spec("vllm_v1", pools__layout="replicas", pools__route=route)
        _, sink, _ = play_cluster(spec, [replace(turn, arrival_ns=turn.arrival_ns // 3) for turn in turns], {"a": 2})
        assert [record.instance for record in sink.of(Routed)] == [0, 1] * 3, route


def test_a_router_by_first_token_weighs_the_queue_against_the_cached_prompt() -> None:
    """MK-01 with each one's own prefix, MK-02: 0.1 ms per prompt token; 160 tokens, 144 sent to instance 0 before.

    With both idle it takes 1.6 ms there and 16 ms on instance 1. With 200 tokens queued on instance 0 (and 300 on 1) it
    takes 21.6 ms there and 46 ms on 1; with 200 there and none on 1 it goes to 1.
    """
    spec = policy_spec("vllm_v1", pools__layout="replicas", pools__route="first_token", batch__token_budget=4096)
    prefix = tuple(range(1, 10))
    known: dict[str, Any] = {"prefix_blocks": prefix}
    requests = [
        request(0, 160, 1, **known),
        request(1, 160, 1, at_ms=50, **known),
        request(2, 200, 1, at_ms=100),
        request(3, 300, 1, at_ms=100),
        request(4, 160, 1, at_ms=101, **known),
        request(5, 200, 1, at_ms=200),
        request(6, 160, 1, at_ms=201, **known),
    ]
    _, sink, _ = play_cluster(spec, requests, {"a": 2}, target=profile(base_ms=0, prefill_token_ms=0.1))
    got = {record.request: (record.instance, record.score, record.next_best) for record in sink.of(Routed)}
    assert got[1] == (0, 1_600_000, 16_000_000)
    assert got[4] == (0, 21_600_000, 46_000_000)
    assert got[6] == (1, 16_000_000, 21_600_000)


@pytest.mark.parametrize("route", ROUTES)
def test_routing_depends_on_no_process(route: str) -> None:
    """Two plays of one plan give equal records: nothing hangs on the order of a set or on an address."""
    spec = policy_spec("vllm_v1", pools__layout="replicas", pools__route=route)
    requests = [request(i, 8 + 16 * (i % 3), 4, at_ms=i / 2, session=i % 3, prefix_blocks=(i % 3,)) for i in range(20)]
    first, second = (play_cluster(spec, requests, {"a": 2, "b": 2})[1].records for _ in range(2))
    assert first == second


def test_instances_are_numbered_by_the_names_of_their_groups() -> None:
    """A database may give the keys of an object back in another order; who is instance 0 must not hang on that."""
    groups = {"b": InstanceGroup(count=2), "a": InstanceGroup()}
    assert (
        list(Topology(groups=groups).groups)
        == list(Topology(groups=dict(reversed(groups.items()))).groups)
        == ["a", "b"]
    )
