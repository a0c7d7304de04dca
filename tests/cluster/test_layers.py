"""KV that leaves layer by layer while it is computed, and time that transfers wait for the network."""

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.departures import Departures
from scheduler_core.cluster.links import Link
from scheduler_core.cluster.transfer import Transfer
from scheduler_core.evidence.finalise import finalise
from scheduler_core.evidence.fold import moves as folded_moves
from scheduler_core.evidence.path.critical_path import critical_path
from scheduler_core.evidence.tables.tables import read_table
from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import play_cluster, policy_spec, profile, request
from scheduler_core.types.cluster_records import Handoff, Landed, Parked, Transferred
from scheduler_core.types.records import Record, RunStarted
from scheduler_core.types.time import NEVER
from tests.cluster.test_handoff import GROUPS, ends_of, split
from tests.cluster.test_replicas import COSTLY, REQUESTS, summary_of

MS = 1_000_000
TEN_MS_A_STEP = profile(base_ms=10)


def link(gb_per_s: float, latency_us: float = 0, layers: int = 10) -> dict[str, Any]:
    """A link, and KV of 1,000 bytes a token."""
    return {
        "link_gb_per_s": gb_per_s, "link_latency_us": latency_us, "kv_bytes_per_token": 1000, "kv_layers": layers,
    }  # fmt: skip


def figures(sink: Any, instances: int, requests: int) -> dict[str, Any]:
    """Values of the metrics of a played cluster whose audit passed."""
    described = [{"name": f"i-{n}", "group": "g", "kv_blocks": 1000} for n in range(instances)]
    summary = summary_of(sink.records, described, requests, 1000 * instances)
    assert summary.audit.passed, summary.audit.violations
    return {name: figure.value for name, figure in summary.metrics.items()}


def test_all_but_the_last_layer_leave_while_the_prompt_is_computed() -> None:
    """10 layers, 10 ms of prefill, 100 kB over 20 MB/s: 5 ms of link, half a ms a layer, and 0.1 ms of latency.

    Layer l leaves at (l + 1) ms and lands 0.6 ms later, before the next one leaves: the last one leaves when the prompt
    is computed, so 0.6 ms of 6 x 1 ms of communication are exposed. After prefill all of 5.1 ms are.
    """
    played = {}
    for move in ("after", "layers"):
        spec = split(pools__reserve="arrival", pools__move=move)
        _, sink, _ = play_cluster(spec, [request(0, 100, 3)], GROUPS, target=TEN_MS_A_STEP, **link(0.02, 100))
        assert ends_of(sink) == {0: ("finished", 3)}
        played[move] = sink
    sent = [(record.start_ns, record.at_ns, record.bytes) for record in played["layers"].of(Transferred)]
    assert sent == [(n * MS, n * MS + 600_000, 10_000) for n in range(1, 11)]
    waited = {move: sink.of(Landed)[0].at_ns - sink.of(Parked)[0].at_ns for move, sink in played.items()}
    assert waited == {"after": 5_100_000, "layers": 600_000}
    by_layer, at_once = figures(played["layers"], 2, 1), figures(played["after"], 2, 1)
    assert (by_layer["communication_ms"], by_layer["exposed_comm_ms"]) == (6.0, 0.6)
    assert by_layer["overlap_ratio"] == pytest.approx(0.9)
    assert (at_once["communication_ms"], at_once["exposed_comm_ms"], at_once["overlap_ratio"]) == (5.1, 5.1, 0.0)
    assert by_layer["network_wait_ms"] == at_once["network_wait_ms"] == 0
    assert at_once["e2e_mean_ms"] - by_layer["e2e_mean_ms"] == pytest.approx(4.5)  # a gain: elapsed time is shorter


def test_a_link_slower_than_computing_sends_layers_one_after_the_other() -> None:
    """20 ms of link for 10 ms of prefill: it is busy from 1 ms on, so all has landed at 21 ms. Nobody else used it."""
    spec = split(pools__reserve="arrival", pools__move="layers")
    _, sink, _ = play_cluster(spec, [request(0, 100, 3)], GROUPS, target=TEN_MS_A_STEP, **link(0.005))
    assert [(r.start_ns, r.at_ns) for r in sink.of(Transferred)] == [
        ((1 + 2 * n) * MS, (3 + 2 * n) * MS) for n in range(10)
    ]
    found = figures(sink, 2, 1)
    assert (found["communication_ms"], found["exposed_comm_ms"], found["network_wait_ms"]) == (20.0, 11.0, 0.0)


@pytest.mark.parametrize(("gigabits", "action"), [(35.0, "recompute"), (35.2, "transfer")])
def test_break_even_with_recomputing_where_layers_are_sent_early(gigabits: float, action: str) -> None:
    """100 MB against 12 ms of prefill, 10 layers: the link is busy from 1.2 ms on, and T ms of it end T + 1.2 - 12 ms
    after prefill. That is 12 ms at T = 22.8: 100e6 x 8 bits / 22.8e-3 s = 35.1 Gb/s, where it is 66.7 after prefill."""
    spec = split(
        pools__handoff="cheapest", pools__reserve="arrival", pools__move="layers", batch__token_budget=4096
    )  # fmt: skip
    _, sink, _ = play_cluster(
        spec,
        [request(0, 1000, 3)],
        GROUPS,
        target=profile(base_ms=0, prefill_token_ms=12 / 1001),
        link_gb_per_s=gigabits / 8,
        link_latency_us=0,
        kv_bytes_per_token=100_000,
        kv_layers=10,
    )
    (decided,) = sink.of(Handoff)
    assert decided.action == action
    assert decided.recompute_ns == pytest.approx(12 * MS, abs=20)
    assert ends_of(sink) == {0: ("finished", 3)}


def test_layers_of_each_chunk_leave_while_that_chunk_is_computed() -> None:
    """300 tokens in chunks of 100, 10 ms each, 5 ms of link a chunk: a tenth of the last chunk is waited for."""
    spec = split(batch__token_budget=100, pools__reserve="arrival", pools__move="layers")
    _, sink, _ = play_cluster(spec, [request(0, 300, 2)], GROUPS, target=TEN_MS_A_STEP, **link(0.02))
    assert [record.start_ns for record in sink.of(Transferred)] == [n * MS for n in range(1, 31)]
    assert sink.of(Landed)[0].at_ns - sink.of(Parked)[0].at_ns == 500_000


def test_a_request_that_is_aborted_leaves_nothing_on_the_link() -> None:
    """Aborted at 3.2 ms of 10, three layers have left and the rest does not: the next prompt has the link to itself."""
    spec = split(pools__reserve="arrival", pools__move="layers")
    requests = [request(0, 100, 3), request(1, 100, 3, at_ms=1)]
    _, sink, cluster = play_cluster(
        spec, requests, GROUPS, target=TEN_MS_A_STEP, cancels=[(0, 3_200_000)], **link(0.005)
    )
    assert ends_of(sink) == {0: ("cancelled", 0), 1: ("finished", 3)}
    assert [(r.request, r.start_ns // MS, r.at_ns // MS) for r in sink.of(Transferred)][:3] == [
        (0, 1, 3), (1, 11, 13), (1, 13, 15),
    ]  # fmt: skip
    assert cluster.next_ns() == NEVER


@given(st.integers(1, 40), st.integers(1, 10_000), st.integers(0, 10**9), st.integers(0, 10**7))
def test_layers_add_up_to_what_is_sent_and_leave_within_the_step(layers: int, size: int, start: int, span: int) -> None:
    departures = Departures(layers)
    pieces = departures.plan(Transfer(0, 0), size, start, start + span)
    left = []
    while (at := departures.next_ns()) != NEVER:
        left += [(at, flow, part) for flow, part in departures.due(at)]
    assert len(left) == pieces
    assert sum(part for _, _, part in left) == size
    assert all(part > 0 and start <= at <= start + span for at, _, part in left)
    assert left[-1][0] == start + span


def test_pieces_of_one_flow_have_one_share_of_the_link() -> None:
    """1 GB/s: ``a`` sends 10 pieces of 100 bytes at once, ``b`` 1,000 bytes: both have 500 bytes moved at 1,000 ns, and
    end together at 2,000 ns. The pieces of ``a`` land 200 ns apart, each having taken 100 more than alone."""
    shared, a, b = Link(10**9), object(), object()
    for _ in range(10):
        shared.start(a, 100, 0)
    shared.start(b, 1000, 0)
    landed = [(moved, at) for at in range(0, 2001, 100) for moved in shared.landed(at)]
    of_a = [(at, moved.start_ns, moved.alone_ns) for moved, at in landed if moved.flow is a]
    assert of_a == [(200 * n + 200, 200 * n, 100) for n in range(10)]
    assert [(at, moved.start_ns, moved.alone_ns) for moved, at in landed if moved.flow is b] == [(2000, 0, 1000)]


def test_what_a_contended_link_takes_longer_is_network_wait() -> None:
    """Two prompts end prefill at 1 ms; each of 100 kB over 100 MB/s takes 1 ms alone, and 2 ms beside the other.

    Of 2 ms of handoff 1 is communication and 1 waiting for the link; over links of their own nothing waits.
    """
    both = [request(0, 100, 2), request(1, 100, 2)]
    _, shared, _ = play_cluster(split(), both, {"a": 1, "b": 2}, **link(0.1))
    assert [r.alone_ns for r in shared.of(Transferred)] == [MS, MS]
    found = figures(shared, 3, 2)
    assert [found[name] for name in ("handoff_ms", "communication_ms", "network_wait_ms")] == [2.0, 1.0, 1.0]
    path = critical_path(shared.records, 0)
    assert [(s.kind, s.length_ns) for s in path.stretches if s.kind in ("network_wait", "handoff")] == [
        ("network_wait", MS), ("handoff", MS),
    ]  # fmt: skip
    _, own, _ = play_cluster(split(), both, {"a": 1, "b": 2}, link_shared=False, **link(0.1))
    found = figures(own, 3, 2)
    assert [found[name] for name in ("handoff_ms", "communication_ms", "network_wait_ms")] == [1.0, 1.0, 0.0]


def test_word_that_comes_late_is_network_wait() -> None:
    """1 ms on the link, and 3 ms until the transfer is reported: 4 ms of handoff, of which 3 were spent waiting."""
    _, sink, _ = play_cluster(split(), [request(0, 100, 2)], GROUPS, late_share=1.0, late_ms=3, **link(0.1))
    found = figures(sink, 2, 1)
    assert [found[name] for name in ("handoff_ms", "communication_ms", "network_wait_ms")] == [4.0, 1.0, 3.0]


def test_one_instance_has_no_network_to_wait_for() -> None:
    """With nothing handed over the figure does not apply, which is not zero."""
    _, sink, _ = play_cluster(policy_spec("vllm_v1", pools__layout="replicas"), [request(0, 20, 3)], {"a": 1})
    assert figures(sink, 1, 1)["network_wait_ms"] is None


SHARED: dict[str, Any] = {
    "link_gb_per_s": 0.01, "kv_bytes_per_token": 2000, "kv_layers": 5, "broken_share": 0.3, "late_share": 0.4,
    "late_ms": 3, "capacity": Capacity(16, 1000), "target": COSTLY,
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    REQUESTS,
    st.sampled_from([*product(("arrival", "before"), ("chunks", "layers")), ("ready", "after")]),
    st.sampled_from(["prefill", "arrival", "decode"]),
    st.sampled_from(["transfer", "recompute", "stay"]),
    st.sampled_from([None, 4]),
)
def test_a_request_has_one_account_of_its_time(
    tmp_path_factory: Any, requests: Any, how: Any, first_token: str, broken: str, patience: Any
) -> None:
    """The critical path, which sweeps all intervals of a request at once, has as much of every kind as the table, which
    is accounted as records pass; with transfers that wait for each other, come late, break off and are preempted."""
    spec = split(
        batch__size=3,
        batch__token_budget=20,
        cache__block_size=4,
        pools__reserve=how[0],
        pools__move=how[1],
        pools__first_token=first_token,
        pools__broken=broken,
        pools__patience_ms=patience,
    )
    _, sink, _ = play_cluster(spec, requests, {"a": 2, "b": 2}, **SHARED)
    described = [{"name": f"i-{n}", "group": "g", "kv_blocks": 16} for n in range(4)]
    started = RunStarted(
        "run", 1, "plan", "policy", {}, {}, "simulation", "modelled", len(requests), 16, 4, 40, instances=described
    )
    folder = tmp_path_factory.mktemp("run")
    records: list[Record] = [started, *sink.records]
    summary = finalise(records, folder=folder, arm="a", repeat=0, tiers={})
    assert summary.audit.passed, summary.audit.violations
    for row in read_table(folder / "requests.parquet").to_pylist():
        if row["outcome"] != "finished":
            continue
        on_path: Counter[str] = Counter()
        for stretch in critical_path(records, row["request"]).stretches:
            on_path[stretch.kind] += stretch.length_ns
        for name, kind in (
            ("network_wait_ms", "network_wait"), ("critical_comm_ms", "handoff"), ("reserve_wait_ms", "reserve_wait"),
            ("decode_queue_ms", "decode_queue"), ("queue_wait_ms", "queue"), ("requeue_wait_ms", "requeue"),
            ("prefill_ms", "compute_prefill"), ("decode_ms", "compute_decode"),
        ):  # fmt: skip
            assert row[name] == pytest.approx(on_path[kind] / MS), (row["request"], name)


def test_the_audit_finds_bytes_that_outran_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer said to have begun when it landed; and an account that books handoffs as something else."""
    _, sink, _ = play_cluster(split(), [request(0, 100, 3)], GROUPS, **link(0.1))
    described = [{"name": f"i-{n}", "group": "g", "kv_blocks": 1000} for n in range(2)]

    def violated(records: list[Record]) -> set[str]:
        return {found.rule for found in summary_of(records, described, 1, 2000).audit.violations}

    assert violated(sink.records) == set()
    outran = [replace(r, start_ns=r.at_ns) if isinstance(r, Transferred) else r for r in sink.records]
    assert violated(outran) == {"handoff adds up"}
    monkeypatch.setattr(folded_moves, "_HANDOFF", "stalled")
    assert violated(sink.records) == {"handoff adds up"}
