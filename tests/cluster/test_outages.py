"""Instances that die or are drained: requests go on elsewhere or fail, nothing leaks, nothing is doubled."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve_arms
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.testing.builders import play_cluster, policy_spec, request
from scheduler_core.types.cluster_records import Landed, Lost, OutageStage, Parked, Routed
from scheduler_core.types.errors import InputError
from scheduler_core.types.records import Finished, Step
from tests.cluster.test_replicas import COSTLY, REQUESTS, summary_of

WARM = {"place_s": 0, "image_s": 0, "weights_s": 0, "graphs_s": 0}


def death(group: str, at_ms: float, **more: Any) -> dict[str, Any]:
    return {"group": group, "at_s": at_ms / 1000, **more}


def replicas(**options: Any) -> Any:
    return policy_spec("vllm_v1", pools__layout="replicas", pools__notice_ms=5, cache__prefix="none", **options)


def audited(sink: Any, cluster: Any, offered: int, blocks: int, spec: Any = None, **topology: Any) -> Any:
    described = [{"name": m.name, "group": m.group, "kv_blocks": blocks} for m in cluster.members]
    summary = summary_of(sink.records, described, offered, blocks * len(described), spec, **topology)
    assert summary.audit.passed, summary.audit.violations
    return summary


def test_another_instance_goes_on_where_the_dead_one_was() -> None:
    """1 ms a step. a0 dies at 4.5 ms with 4 of 10 tokens out, KV of 23, and its fifth step lost; it is missed at 9.5.

    a1 has a step of its own until 10 ms; then it computes the 24 known tokens again, and the fifth token is there at
    11 ms: 6.5 ms after the death. The last one comes at 16 ms.
    """
    requests = [request(0, 20, 10), request(1, 20, 12)]
    spec = replicas(pools__route="round_robin")
    _, sink, cluster = play_cluster(spec, requests, {"a": 2}, outages=[death("a", 4.5)])
    assert [(r.at_ns, r.instance, r.what) for r in sink.of(OutageStage)] == [
        (4_500_000, 0, "died"),
        (9_500_000, 0, "noticed"),
    ]
    assert [(r.request, r.instance, r.tokens) for r in sink.of(Lost)] == [(0, 0, 23)]
    grants = [(s.planned_ns, *row[2:5]) for s in sink.of(Step) for row in s.grants if s.instance == 1 and row[0] == 0]
    assert grants[0] == (10_000_000, 0, 24, "recompute")
    ends = {r.request: (r.outcome, r.output_tokens, r.at_ns) for r in sink.of(Finished)}
    assert ends == {0: ("finished", 10, 16_000_000), 1: ("finished", 12, 12_000_000)}
    summary = audited(sink, cluster, 2, 1000)
    assert summary.metrics["instance_deaths"].value == 1
    assert summary.metrics["requests_lost"].value == 1
    assert summary.metrics["recovery_ms"].value == pytest.approx(6.5)


def test_requests_of_a_dead_instance_fail_where_the_policy_says_so() -> None:
    spec = replicas(pools__route="round_robin", pools__on_death="fail")
    requests = [request(0, 20, 10), request(1, 20, 10)]
    _, sink, cluster = play_cluster(spec, requests, {"a": 2}, outages=[death("a", 4.5)])
    ends = {r.request: (r.outcome, r.stage, r.reason, r.output_tokens) for r in sink.of(Finished)}
    assert ends[0] == ("failed", "instance", "instance_died", 4)
    assert ends[1][0] == "finished"
    audited(sink, cluster, 2, 1000)


def test_until_it_is_missed_requests_are_still_sent_to_a_dead_instance() -> None:
    """Dead at 1.5 ms, missed at 6.5: what is routed to it at 3 ms waits until then; what comes at 7 goes elsewhere."""
    spec = replicas(pools__route="round_robin")
    requests = [request(0, 5, 1), request(1, 5, 1), request(2, 5, 1, at_ms=3), request(3, 5, 1, at_ms=7)]
    _, sink, _ = play_cluster(spec, requests, {"a": 2}, outages=[death("a", 1.5)])
    assert [(r.request, r.instance) for r in sink.of(Routed)] == [(0, 0), (1, 1), (2, 0), (2, 1), (3, 1)]
    assert {r.request: r.at_ns for r in sink.of(Finished)}[2] == 7_500_000


def test_with_nobody_left_requests_fail_and_a_start_brings_service_back() -> None:
    """The only instance dies at 2.5 ms and is back at 30 ms, empty, after a cold start of no time."""
    requests = [request(0, 5, 20), request(1, 5, 2, at_ms=10), request(2, 5, 2, at_ms=40)]
    outages = [death("a", 2.5, back_after_s=0.0275)]
    _, sink, cluster = play_cluster(replicas(), requests, {"a": 1}, outages=outages, cold_start=WARM)
    assert [(r.request, r.outcome, r.reason) for r in sink.of(Finished)] == [
        (0, "failed", "instance_died"),
        (1, "failed", "no_instance"),
        (2, "finished", "stop"),
    ]
    audited(sink, cluster, 3, 1000)


def test_a_session_goes_on_at_another_instance_and_stays_there() -> None:
    """Session-sticky failover: the home is a0 until that dies at 15 ms; from then on a1, also when a0 is back."""
    turns = [request(i, 5, 1, at_ms=10 * i, session=7) for i in range(6)]
    outages = [death("a", 15, back_after_s=0.02)]
    spec = replicas(pools__route="sticky")
    _, sink, _ = play_cluster(spec, turns, {"a": 2}, outages=outages, cold_start=WARM)
    assert [(r.request, r.instance) for r in sink.of(Routed)] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 1)]


def test_a_drained_instance_ends_what_it_has_and_gets_nothing_new() -> None:
    requests = [request(0, 5, 30), *(request(i, 5, 2, at_ms=10 + i) for i in range(1, 5))]
    spec = replicas(pools__route="round_robin")
    _, sink, _ = play_cluster(spec, requests, {"a": 2}, outages=[death("a", 5, kind="drain")])
    assert [r.instance for r in sink.of(Routed)] == [0, 1, 1, 1, 1]
    assert {r.outcome for r in sink.of(Finished)} == {"finished"}


def test_a_drained_instance_is_emptied_by_migration() -> None:
    """Its request decodes on while it moves, and ends on the other one."""
    spec = replicas(pools__route="round_robin", pools__migrate={"every_ms": 10, "above": 5.0})
    outages = [death("a", 5, kind="drain")]
    _, sink, cluster = play_cluster(spec, [request(0, 50, 60)], {"a": 2}, outages=outages, kv_bytes_per_token=1000)
    assert [(r.request, r.instance) for r in sink.of(Landed)] == [(0, 1)]
    assert [r.output_tokens for r in sink.of(Finished)] == [60]
    audited(sink, cluster, 1, 1000)


@pytest.mark.parametrize("victim", ["decode", "prefill"])
def test_a_hundred_requests_in_transfer_outlive_a_death_on_either_side(victim: str) -> None:
    """A slow link, so that all are on their way when one side dies at 50 ms; half of them are aborted at 60 ms.

    Missed at 250 ms, everybody is served by who is left, blocks are back to the starting figure, and what the dead side
    would have reported is nobody's any more. A new request is admitted.
    """
    spec = policy_spec(
        "vllm_v1", pools__layout="split", pools__prefill=("prefill",), pools__notice_ms=200, cache__prefix="none"
    )
    requests = [*(request(i, 20, 4) for i in range(100)), request(100, 20, 4, at_ms=5_000)]
    report, sink, cluster = play_cluster(
        spec,
        requests,
        {"prefill": 2, "decode": 2},
        capacity=Capacity(400, 1000),
        cancels=[(i, 60_000_000) for i in range(0, 100, 2)],
        outages=[death(victim, 50)],
        link_gb_per_s=0.001,
        kv_bytes_per_token=1000,
    )
    assert len({r.request for r in sink.of(Parked) if r.at_ns < 50_000_000}) == 100
    assert report.outcomes == {"finished": 51, "cancelled": 50}
    alive = [member for index, member in enumerate(cluster.members) if cluster.serves(index)]
    assert [member.instance.occupancy().kv_used for member in alive] == [0, 0, 0]
    audited(sink, cluster, 101, 400)


DEATHS = st.lists(
    st.tuples(st.sampled_from(["decode", "prefill"]), st.integers(0, 1), st.integers(0, 48), st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda row: row[:2],
)
DEPLOYED = ["replicas", "vllm_pd", "sglang_pd", "distserve", "mooncake", "llumnix"]


def deployed(name: str, on_death: str, drafts: int) -> Any:
    """A deployment small enough for every boundary to be met; replicas without one."""
    options: dict[str, Any] = {"batch__size": 3, "batch__token_budget": 40, "cache__block_size": 4}
    options["execution__draft_tokens"] = drafts
    if name == "llumnix":
        options["pools__migrate"] = {"every_ms": 1, "above": 0.1, "last_blocks": 1}
    if name == "replicas":
        name, options["pools__layout"] = "vllm_v1", "replicas"
    return policy_spec(name, pools__notice_ms=2, pools__on_death=on_death, **options)


@settings(max_examples=80, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(DEPLOYED),
    st.sampled_from(["recompute", "fail"]),
    DEATHS,
    st.sampled_from([None, 0.004]),
    st.sampled_from([0.0, 0.4]),
    st.lists(st.tuples(st.integers(0, 13), st.integers(0, 25_000_000)), max_size=4),
    st.sampled_from([0, 3]),
)
def test_nothing_is_lost_or_doubled_by_death_delay_and_loss(
    requests: Any, name: str, on_death: str, deaths: Any, back: Any, faults: float, cancels: Any, drafts: int
) -> None:
    """Deaths and drains at every state of a handoff and of a migration, beside cancels and broken and late transfers:

    every request ends once, no instance that lives holds a block at the end, and the audit finds every token computed.
    """
    outages = [
        death(group, at / 2, number=number, kind="drain" if drains else "death", back_after_s=back)
        for group, number, at, drains in deaths
    ]
    report, sink, cluster = play_cluster(
        deployed(name, on_death, drafts),
        requests,
        {"decode": 2, "prefill": 2},
        capacity=Capacity(12, 1000),
        target=COSTLY,
        cancels=[(number, at) for number, at in dict(cancels).items() if number < len(requests)],
        outages=outages,
        cold_start={**WARM, "weights_s": 0.003},
        link_gb_per_s=0.01,
        kv_bytes_per_token=2000,
        broken_share=faults,
        late_share=faults,
        late_ms=3,
    )
    assert sum(report.outcomes.values()) == len(requests)
    assert not cluster.open_requests()
    alive = [member for index, member in enumerate(cluster.members) if cluster.serves(index)]
    assert all(member.instance.occupancy().kv_used == 0 for member in alive)
    outputs = {planned.index: planned.output_tokens for planned in requests}
    assert all(r.output_tokens == outputs[r.request] for r in sink.of(Finished) if r.outcome == "finished")
    audited(sink, cluster, len(requests), 12)


def test_an_outage_of_an_instance_that_is_not_there_is_refused() -> None:
    data: dict[str, Any] = {
        "name": "x",
        "workload": {"profile": "chat", "rate_rps": 1, "requests": 3},
        "target": {"modelled": {"topology": {"groups": {"a": {"count": 2}}}}},
        "arms": {"one": {"policy": "vllm_v1", "pools": {"layout": "replicas"}}},
        "events": {
            "outages": [
                {"at_s": 1, "group": "b"},
                {"at_s": 1, "group": "a", "number": 2},
                {"at_s": 1, "group": "a"},
                {"at_s": 2, "group": "a"},
            ]
        },
    }
    with pytest.raises(InputError) as caught:
        resolve_arms(parse(ExperimentSpec, data), None)
    assert [f"{item.where}: {item.message}" for item in caught.value.problems] == [
        "events.outages.0.group: there is no group 'b'; the target has a",
        "events.outages.1.number: is 2, but a has 2 instances, counted from 0",
        "events.outages.3.at_s: is 2, when a 0 is not back yet",
    ]
