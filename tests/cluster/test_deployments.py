"""Named deployments: who emits the first token, when a place is kept, and that each of them loses nobody."""

from typing import Any

import pytest

from scheduler_core.policies.deployments import DEPLOYMENTS
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve
from scheduler_core.testing.builders import play_cluster, policy_spec, profile, request
from scheduler_core.testing.conformance import TARGET, traffic
from scheduler_core.types.cluster_records import Emitted, Handoff, Held, Landed, Parked, Routed, Transferred
from scheduler_core.types.patience import Promise
from scheduler_core.types.records import Admitted, Finished, Preempted, Step
from tests.cluster.test_replicas import summary_of

GROUPS = {"prefill": 1, "decode": 1}


def emitted_ms(sink: Any, index: int) -> list[float]:
    """When the tokens of a request were there, in ms."""
    by_step = [s.available_ns for s in sink.of(Step) for row in s.grants if row[0] == index and row[5]]
    return sorted(at / 1e6 for at in [*by_step, *(r.at_ns for r in sink.of(Emitted) if r.request == index)])


def fault_14(first_token: str) -> Any:
    """Arrival 0, prefill done at 100 ms, transfer 40, no decode queue, decode step 10."""
    costs = profile(base_ms=10, prefill_token_ms=0.09)
    spec = policy_spec(
        "vllm_v1",
        pools__layout="split",
        pools__prefill=("prefill",),
        pools__first_token=first_token,
        batch__token_budget=4096,
    )
    link: dict[str, Any] = {"link_gb_per_s": 0.025, "link_latency_us": 0, "kv_bytes_per_token": 1000}
    return play_cluster(spec, [request(0, 1000, 3)], GROUPS, target=costs, **link)[1]


@pytest.mark.parametrize(
    ("first_token", "times"),
    [("prefill", [100, 150, 160]), ("arrival", [140, 150, 160]), ("decode", [150, 160, 170])],
)
def test_the_first_token_is_where_the_preset_says(first_token: str, times: list[float]) -> None:
    """1,000 tokens of 1 kB over 25 MB/s are 40 ms. Emitted by prefill at 100, on arrival at 140; where the first
    decode step computes it, over the prompt's last token, at 150. The parts add up to the time to first token."""
    sink = fault_14(first_token)
    assert emitted_ms(sink, 0) == times
    described = [{"name": name, "group": name, "kv_blocks": 1000} for name in ("decode", "prefill")]
    summary = summary_of(sink.records, described, 1, 2000)
    assert summary.audit.passed, summary.audit.violations
    assert summary.metrics["ttft_mean_ms"].value == times[0]


def test_a_whole_delivery_leaves_one_token_to_compute() -> None:
    """V-33: 32 of 32 tokens delivered; computed are 31, the next grant is 1, and it counts as decode."""
    spec = policy_spec("vllm_pd")
    _, sink, _ = play_cluster(spec, [request(0, 32, 2)], GROUPS)
    assert [(record.tokens, record.stayed) for record in sink.of(Landed)] == [(31, False)]
    decode, prefill = 0, 1  # instances are numbered by the names of their groups
    assert [(s.instance, *s.grants[0][2:6]) for s in sink.of(Step)] == [
        (prefill, 0, 32, "prefill", 0),
        (decode, 31, 1, "decode", 1),
        (decode, 32, 1, "decode", 1),
    ]


def test_a_failed_load_fails_the_request_with_its_stage() -> None:
    """V-33, the default: nothing of a failed request enters the time to first token."""
    _, sink, _ = play_cluster(policy_spec("vllm_pd"), [request(0, 32, 2)], GROUPS, broken_share=1.0)
    (ended,) = sink.of(Finished)
    assert (ended.outcome, ended.reason, ended.output_tokens) == ("failed", "handoff: broken_off", 0)


def test_a_prompt_is_not_computed_before_its_place_is_kept() -> None:
    """PD-01, PD-03: the decode pool holds one prompt of 40 tokens and its answer; the second waits with its prefill.

    That wait is for room to decode, not in the queue of prefill.
    """
    spec = policy_spec("sglang_pd", cache__block_size=4, pools__headroom_tokens=0)
    requests = [request(0, 40, 8), request(1, 40, 8)]
    _, sink, _ = play_cluster(spec, requests, GROUPS, capacity=Capacity(13, 1000))
    over = [record.at_ns for record in sink.of(Held) if record.over]
    begins = {row[0]: s.planned_ns for s in reversed(sink.of(Step)) for row in s.grants if row[4] == "prefill"}
    ends = {record.request: record.at_ns for record in sink.of(Finished)}
    assert [record.request for record in sink.of(Held)] == [1, 1]
    assert ends[0] <= over[0] <= begins[1]
    described = [{"name": name, "group": name, "kv_blocks": 13} for name in ("decode", "prefill")]
    summary = summary_of(sink.records, described, 2, 26)
    assert summary.audit.passed, summary.audit.violations
    assert summary.metrics["queue_wait_max_ms"].value == 0


def test_headroom_stays_free_for_who_is_there() -> None:
    """PD-04: 24 blocks of 4; a prompt of 40 holds 10. With 16 tokens for each there 4 more stay free, so the second (10
    blocks) fits into 14; with 20 tokens, 5 blocks, it waits until the first is over."""
    for headroom, waits in ((16, False), (20, True)):
        spec = policy_spec("sglang_pd", cache__block_size=4, pools__headroom_tokens=headroom)
        requests = [request(0, 40, 4), request(1, 40, 4)]
        _, sink, _ = play_cluster(spec, requests, GROUPS, capacity=Capacity(24, 1000))
        assert bool(sink.of(Held)) is waits, headroom


@pytest.mark.parametrize(("first", "waits"), [(True, True), (False, False)])
def test_who_lost_its_blocks_comes_back_before_anybody_new_gets_a_place(first: bool, waits: bool) -> None:
    """PD-05. A decode pool of 24 blocks of 4 holds two requests of 40 tokens (10 blocks each); their answers fill it
    at 48 tokens each, after 8, and one is retracted. A third prompt of 4 tokens, there at 15 ms, fits beside the other
    one at once, but gets a place only when the retracted one is back: when the other one is over."""
    spec = policy_spec(
        "sglang_pd", cache__block_size=4, pools__headroom_tokens=0, pools__retracted_first=first, cache__prefix="none"
    )
    requests = [request(0, 40, 30), request(1, 40, 30), request(2, 4, 3, at_ms=15)]
    _, sink, _ = play_cluster(spec, requests, GROUPS, capacity=Capacity(24, 1000))
    (retracted,) = {record.request for record in sink.of(Preempted)}
    back = min(record.at_ns for record in sink.of(Admitted) if record.request == retracted and record.resumed)
    landed = {record.request: record.at_ns for record in sink.of(Landed)}[2]
    assert (landed >= back) is waits


def test_decode_pulls_only_while_few_prompts_wait_there() -> None:
    """DS-02: 100 blocks of 4, at most one runs. The first (3 blocks) runs; the second has landed and waits: its 3
    blocks are under 5%, so the third is pulled, too; 6 are not, so the fourth stays with prefill until one begins."""
    spec = policy_spec("distserve", cache__block_size=4, batch__size=1)
    requests = [request(index, 12, 50, at_ms=2 * index) for index in range(4)]
    _, sink, _ = play_cluster(spec, requests, GROUPS, capacity=Capacity(100, 1000), link_latency_us=0)
    ends = {record.request: record.at_ns for record in sink.of(Finished)}
    landed = {record.request: record.at_ns for record in sink.of(Landed)}
    parked = {record.request: record.at_ns for record in sink.of(Parked)}
    assert [landed[index] - parked[index] < 1_000_000 for index in range(4)] == [True, True, True, False]
    assert landed[3] >= ends[0]


def test_what_is_predicted_to_miss_its_promise_is_refused_on_arrival() -> None:
    """MK-03. A prompt of 100 takes 10 ms; within 25 ms for the first token two fit, the third is predicted at 30 ms."""
    costs = profile(base_ms=0, prefill_token_ms=0.1)
    capacity = Capacity(1000, 10_000, promises={"default": Promise(ttft_ns=25_000_000)})
    requests = [request(index, 100, 4) for index in range(3)]
    _, sink, _ = play_cluster(policy_spec("mooncake"), requests, GROUPS, capacity=capacity, target=costs)
    refused = [record for record in sink.of(Finished) if record.outcome == "rejected"]
    assert [(r.request, r.stage, r.reason, r.need, r.have) for r in refused] == [
        (2, "route", "predicted_ttft", 30_000_000, 25_000_000)
    ]


def test_refusal_looks_at_the_decoding_there_will_be() -> None:
    """MK-03: a decode step takes 1 ms a request; promised is 2.5 ms a token. Nobody decodes when three arrive at once,
    but the third would be the third to decode, at 3 ms a token: refused now, not once its prompt is computed."""
    costs = profile(base_ms=0, decode_request_ms=1)
    capacity = Capacity(1000, 10_000, promises={"default": Promise(tpot_ns=2_500_000)})
    requests = [request(index, 100, 4) for index in range(3)]
    _, sink, _ = play_cluster(policy_spec("mooncake"), requests, GROUPS, capacity=capacity, target=costs)
    refused = [(r.request, r.reason, r.need) for r in sink.of(Finished) if r.outcome == "rejected"]
    assert refused == [(2, "predicted_tpot", 3_000_000)]


def test_a_kv_aware_router_weighs_the_cached_prefix_against_the_load() -> None:
    """160 tokens, 144 known on instance 0, which holds 400 of KV; instance 1 holds nothing.

    By weight 1: 16 + 400 + 160 there, 160 + 0 + 160 here: here. By weight 4: 4 x 16 + 560 there, 4 x 160 + 160 here:
    there.
    """
    prefix: dict[str, Any] = {"prefix_blocks": tuple(range(1, 10))}
    for weight, instance in ((1, 1), (4, 0)):
        spec = policy_spec("kv_router", pools__prefix_weight=weight, batch__token_budget=4096)
        first = [request(0, 160, 1, **prefix), request(1, 398, 60, at_ms=10), request(2, 160, 1, at_ms=12, **prefix)]
        _, sink, cluster = play_cluster(spec, first, {"a": 2})
        assert [record.instance for record in sink.of(Routed)] == [0, 0, instance], weight
        assert not cluster.open_requests()


@pytest.mark.parametrize("name", [manifest.name for manifest in DEPLOYMENTS])
@pytest.mark.parametrize("faults", [0.0, 0.3])
def test_every_deployment_loses_nobody_and_passes_the_audit(name: str, faults: float) -> None:
    """Bursts, streams and turns on small pools with cancels, broken and late transfers; laws after every step."""
    layout = resolve(policy_spec(name)).pools.layout
    for kind in ("burst", "stream", "turns"):
        requests = traffic(kind, 3, 40)
        cancels = [(4 * index, 30_000_000 + 9_000_000 * index) for index in range(8)]
        report, sink, cluster = play_cluster(
            policy_spec(name),
            requests,
            {"prefill": 2, "decode": 2},
            capacity=Capacity(40, 400),
            target=TARGET,
            cancels=cancels,
            kv_bytes_per_token=20_000,
            link_gb_per_s=0.5,
            broken_share=faults,
            late_share=faults,
            late_ms=5,
        )
        assert sum(report.outcomes.values()) == len(requests)
        assert not cluster.open_requests()
        assert all(member.instance.occupancy().kv_used == 0 for member in cluster.members)
        described = [{"name": m.name, "group": m.group, "kv_blocks": 40} for m in cluster.members]
        summary = summary_of(sink.records, described, len(requests), 160)
        assert summary.audit.passed, summary.audit.violations
        if layout == "split":
            assert sink.of(Handoff)
            assert sink.of(Transferred)
