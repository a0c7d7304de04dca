"""Prefill and decode in different pools: what becomes of a computed prompt, and that nothing is lost or doubled."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import play_cluster, policy_spec, profile, request
from scheduler_core.types.cluster_records import Handoff, Landed, Parked, Revoked, TransferFailed, Transferred
from scheduler_core.types.records import Finished, Step
from tests.cluster.test_replicas import COSTLY, REQUESTS, summary_of

GROUPS = {"a": 1, "b": 1}


def split(**settings_: Any) -> Any:
    """A spec with separated pools; group ``a`` computes prompts."""
    return policy_spec("vllm_v1", pools__layout="split", pools__prefill=("a",), **settings_)


def ends_of(sink: Any) -> dict[int, tuple[str, int]]:
    """Outcome and output tokens by request."""
    return {record.request: (record.outcome, record.output_tokens) for record in sink.of(Finished)}


def test_a_request_is_computed_here_sent_and_decoded_there() -> None:
    """1 ms a step, 100 tokens of 1,000 bytes over 100 MB/s and 10 us: prompt computed at 1 ms, 1.01 ms on the link.

    Tokens at 1 ms from the prefill instance, then at 3.01 and 4.01 ms from the decode instance.
    """
    _, sink, _ = play_cluster(
        split(), [request(0, 100, 3)], GROUPS, link_gb_per_s=0.1, link_latency_us=10, kv_bytes_per_token=1000
    )
    assert [(r.at_ns, r.instance) for r in sink.of(Parked)] == [(1_000_000, 0)]
    assert [(r.at_ns, r.start_ns, r.bytes) for r in sink.of(Transferred)] == [(2_010_000, 1_000_000, 100_000)]
    assert [(r.at_ns, r.instance, r.tokens) for r in sink.of(Landed)] == [(2_010_000, 1, 100)]
    assert [(s.instance, s.planned_ns, s.grants[0][2:5]) for s in sink.of(Step)] == [
        (0, 0, (0, 100, "prefill")),
        (1, 2_010_000, (100, 1, "decode")),
        (1, 3_010_000, (101, 1, "decode")),
    ]
    assert ends_of(sink) == {0: ("finished", 3)}


def test_transfers_under_way_at_once_share_the_link() -> None:
    """Two prompts of 100 tokens end prefill at 1 ms; each of 100 kB over a shared 100 MB/s takes 2 ms, not 1.

    Over links of their own, to two decode instances, each takes 1 ms.
    """
    both = [request(0, 100, 2), request(1, 100, 2)]
    speed: dict[str, Any] = {"link_gb_per_s": 0.1, "link_latency_us": 0, "kv_bytes_per_token": 1000}
    _, shared, _ = play_cluster(split(), both, {"a": 1, "b": 2}, **speed)
    assert [r.at_ns for r in shared.of(Landed)] == [3_000_000, 3_000_000]
    _, own, _ = play_cluster(split(), both, {"a": 1, "b": 2}, link_shared=False, **speed)
    assert [(r.at_ns, r.instance) for r in own.of(Landed)] == [(2_000_000, 1), (2_000_000, 2)]


@pytest.mark.parametrize(("gigabits", "action"), [(66.0, "recompute"), (67.0, "transfer")])
def test_break_even_of_transfer_and_recompute(gigabits: float, action: str) -> None:
    """100 MB against 12 ms of prefill: 100e6 x 8 bits / 12e-3 s = 66.7 Gb/s decides (1,000 tokens of 100 kB)."""
    costs = profile(base_ms=0, prefill_token_ms=12 / 1001)
    spec = split(pools__handoff="cheapest", batch__token_budget=4096)
    _, sink, _ = play_cluster(
        spec,
        [request(0, 1000, 3)],
        GROUPS,
        target=costs,
        link_gb_per_s=gigabits / 8,
        link_latency_us=0,
        kv_bytes_per_token=100_000,
    )
    (decided,) = sink.of(Handoff)
    assert decided.action == action
    assert decided.recompute_ns == pytest.approx(12_000_000, abs=20)
    assert ends_of(sink) == {0: ("finished", 3)}


def test_a_way_over_the_budget_gives_way_to_the_other_and_then_to_staying() -> None:
    """A transfer of 1 s and a recomputation of 0.1 s: within 0.5 s it is recomputed, within 0.05 s it stays."""
    costs = profile(base_ms=1, prefill_token_ms=1)
    slow: dict[str, Any] = {"link_gb_per_s": 0.0001, "kv_bytes_per_token": 1000, "target": costs}
    for budget_ms, action in ((500, "recompute"), (50, "stay")):
        _, sink, _ = play_cluster(split(pools__handoff_budget_ms=budget_ms), [request(0, 100, 4)], GROUPS, **slow)
        (decided,) = sink.of(Handoff)
        assert (decided.action, decided.reason) == (action, "over_budget")
        assert ends_of(sink) == {0: ("finished", 4)}
        assert {step.instance for step in sink.of(Step)} == ({0, 1} if action == "recompute" else {0})


def test_without_room_to_decode_a_request_waits_and_then_stays() -> None:
    """The decode instance holds one prompt of 40 tokens; the second waits 5 ms for room and then stays (R38)."""
    spec = split(pools__patience_ms=5, cache__block_size=4)
    capacity = Capacity(12, 1000)
    _, sink, _ = play_cluster(spec, [request(0, 40, 8), request(1, 40, 8)], GROUPS, capacity=capacity, target=None)
    decided = {record.request: (record.action, record.reason) for record in sink.of(Handoff)}
    assert decided[0] == ("transfer", "")
    assert decided[1] == ("stay", "no_room")
    assert ends_of(sink) == {0: ("finished", 8), 1: ("finished", 8)}


@pytest.mark.parametrize("reserve", ["before", "arrival"])
def test_places_that_are_kept_early_count_where_the_next_one_is_chosen(reserve: str) -> None:
    """Four prompts at once for two instances that decode: a place taken before any KV is on its way counts as taken, so
    they go to 1, 2, 1, 2 and not all to the first."""
    spec = split(pools__reserve=reserve)
    _, sink, _ = play_cluster(spec, [request(i, 16, 3) for i in range(4)], {"a": 1, "b": 2})
    assert [record.destination for record in sink.of(Handoff)] == [1, 2, 1, 2]


@pytest.mark.parametrize("broken", ["transfer", "recompute", "stay", "fail"])
def test_a_transfer_that_breaks_off_leads_where_the_policy_says(broken: str) -> None:
    """Every transfer breaks off; where it is tried once more, each attempt does with one chance in two."""
    share = 0.5 if broken == "transfer" else 1.0
    requests = [request(i, 30, 5, at_ms=i) for i in range(6)]
    _, sink, cluster = play_cluster(split(pools__broken=broken), requests, GROUPS, broken_share=share)
    assert sink.of(TransferFailed)
    outcome = "failed" if broken == "fail" else "finished"
    assert {found[0] for found in ends_of(sink).values()} == {outcome}
    assert not cluster.open_requests()


def test_chunks_are_sent_while_the_next_is_computed() -> None:
    """A prompt of 300 tokens in chunks of 100, 10 ms each, 1 ms of link per 100 tokens: with a place from the start and
    chunks sent as they come the last one alone is waited for, 1 ms; sent after prefill it is 3 ms."""
    costs = profile(base_ms=10)
    link: dict[str, Any] = {"link_gb_per_s": 0.1, "link_latency_us": 0, "kv_bytes_per_token": 1000, "target": costs}
    after = split(batch__token_budget=100, pools__reserve="arrival")
    chunks = split(batch__token_budget=100, pools__reserve="arrival", pools__move="chunks")
    waited = []
    for spec in (after, chunks):
        _, sink, _ = play_cluster(spec, [request(0, 300, 2)], GROUPS, **link)
        waited.append(sink.of(Landed)[0].at_ns - sink.of(Parked)[0].at_ns)
    assert waited == [3_000_000, 1_000_000]


@settings(max_examples=150, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(["cheapest", "transfer", "recompute", "stay"]),
    st.sampled_from(["transfer", "recompute", "stay", "fail"]),
    st.sampled_from([("ready", "after"), *product(("arrival", "before"), ("after", "chunks", "layers"))]),
    st.sampled_from(["prefill", "arrival", "decode"]),
    st.sampled_from([None, 0, 4]),
    st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    st.sampled_from(["none", "hash"]),
    st.sampled_from([0.0, 0.4]),
    st.lists(st.tuples(st.integers(0, 13), st.integers(0, 25_000_000)), max_size=4),
)
def test_nothing_is_lost_or_doubled_whatever_happens(
    requests: Any,
    handoff: str,
    broken: str,
    how: Any,
    first_token: str,
    patience: Any,
    sizes: Any,
    prefix: str,
    faults: float,
    cancels: Any,
) -> None:
    """Cancels, broken and late transfers at any moment, pools of 12 blocks: every request ends once, and the audit,
    which replays the records with state of its own, finds every token computed where its KV was."""
    spec = policy_spec(
        "vllm_v1",
        batch__size=3,
        batch__token_budget=20,
        cache__block_size=4,
        cache__prefix=prefix,
        pools__layout="split",
        pools__prefill=("a",),
        pools__handoff=handoff,
        pools__broken=broken,
        pools__reserve=how[0],
        pools__move=how[1],
        pools__first_token=first_token,
        pools__patience_ms=patience,
    )
    cancels = [(number, at) for number, at in dict(cancels).items() if number < len(requests)]
    report, sink, cluster = play_cluster(
        spec,
        requests,
        {"a": sizes[0], "b": sizes[1]},
        capacity=Capacity(12, 1000),
        target=COSTLY,
        cancels=cancels,
        link_gb_per_s=0.01,
        kv_bytes_per_token=2000,
        broken_share=faults,
        late_share=faults,
        late_ms=3,
    )
    assert sum(report.outcomes.values()) == len(requests)
    assert not cluster.open_requests()
    assert all(member.instance.occupancy().kv_used == 0 for member in cluster.members)
    described = [{"name": member.name, "group": member.group, "kv_blocks": 12} for member in cluster.members]
    summary = summary_of(sink.records, described, len(requests), 12 * len(described))
    assert summary.audit.passed, summary.audit.violations


def test_pools_never_share_a_step() -> None:
    """Fifty requests: the prefill pool grants no decode, the decode pool no prefill (M4)."""
    requests = [request(i, 20 + i % 7, 3 + i % 5, at_ms=i / 3) for i in range(50)]
    _, sink, _ = play_cluster(split(), requests, {"a": 2, "b": 2})
    phases = {(step.instance // 2, grant[4]) for step in sink.of(Step) for grant in step.grants}
    assert phases == {(0, "prefill"), (1, "decode")}


def test_holders_that_wait_for_each_other_are_told_apart() -> None:
    """A pool of 7 blocks, three requests with 2 lodged, each in need of a third: one gives its blocks up."""
    spec = split(cache__block_size=4, batch__size=8)
    requests = [request(i, 8, 9) for i in range(3)]
    _, sink, _ = play_cluster(spec, requests, GROUPS, capacity=Capacity(7, 1000))
    assert set(ends_of(sink).values()) == {("finished", 9)}
    assert sink.of(Revoked)
