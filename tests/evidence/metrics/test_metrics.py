"""Figures of runs small enough to work out by hand, and the faults that others shipped."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.path.critical_path import critical_path
from scheduler_core.evidence.schema import Absence, RunSummary
from scheduler_core.evidence.tables.tables import read_table
from scheduler_core.spec.goal import MetricName
from scheduler_core.types.quantile import quantile
from scheduler_core.types.records import Loaded
from tests.evidence.played import summarise
from tests.evidence.scenes import Scene, found_again, ns, recomputed


def single_tokens(count: int, offered: int | None = None) -> Scene:
    """``count`` requests of one token each: request i arrives at 10 i and is done 5 ms later."""
    scene = Scene(offered or count)
    for request in range(count):
        scene.arrive(request, 10 * request)
        scene.admit(request, 10 * request)
        scene.step(10 * request, 10 * request + 5, [(request, 10)])
        scene.finish(request, 10 * request + 5)
    return scene


def value(summary: RunSummary, name: str) -> float | None:
    return summary.metrics[name].value


def test_every_gate_has_a_registered_metric() -> None:
    assert set(MetricName.__args__) <= METRICS.keys()  # type: ignore[attr-defined]


REQUIRED = {
    "TTFT": "ttft_p95_ms", "TPOT": "tpot_p95_ms", "throughput": "throughput_tokens_per_s", "P50": "e2e_p50_ms",
    "P95": "e2e_p95_ms", "P99": "e2e_p99_ms", "E2E latency": "e2e_mean_ms", "peak memory": "peak_memory_mb",
    "queue time": "queue_wait_mean_ms", "queue length": "queue_length_mean", "max wait": "queue_wait_max_ms",
    "timeout rate": "timeout_share", "rejection rate": "rejection_share", "SLA attainment": "attainment_share",
    "concurrency capacity": "concurrency_capacity", "fairness": "fairness_jain",
    "batch efficiency": "batch_requests_mean", "batch utilisation": "batch_utilisation",
    "decode jitter": "decode_jitter_ms", "pool utilisation": "pool_utilisation",
    "resource isolation": "isolation_ratio", "cache usage": "kv_used_mean_share", "OOM": "out_of_memory_count",
    "communication time": "communication_ms", "handoff ms": "handoff_ms", "transfer volume": "transfer_bytes",
    "recompute time": "recompute_mean_ms", "failure state": "failure_share", "route hit": "route_hit_share",
    "fallback rate": "handoff_fallback_share", "expert load": "expert_load_imbalance", "idle": "idle_gap_ms",
    "scale-out latency": "scale_out_latency_ms", "recovery time": "recovery_ms", "degrade": "degraded_share",
    "migration time": "migration_ms", "deployment cost": "cost_per_million_tokens",
}  # fmt: skip


@pytest.mark.parametrize("name", REQUIRED.values(), ids=REQUIRED)
def test_required_metrics_are_described_and_have_a_value_or_a_typed_absence(name: str, tmp_path: Path) -> None:
    metric = METRICS[name]
    assert metric.unit and metric.formula and metric.sample_rule
    assert metric.better in ("lower", "higher", "none") and metric.scope in ("request", "run", "pool", "step")
    figure = summarise(single_tokens(20).end(200), tmp_path).metrics[name]
    assert (figure.value is None) == (figure.absence is not None)
    assert figure.value is not None or figure.note


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_is_numpys_linear_interpolation(values: list[float], share: float) -> None:
    values.sort()
    assert quantile(values, share) == pytest.approx(np.quantile(values, share), rel=1e-9, abs=1e-9)


def test_quantile_touching_infinity_is_infinite() -> None:
    """Position 0.95 x 4 = 3.8 lies between a finite and an infinite value."""
    assert math.isinf(quantile([1, 2, 3, 4, math.inf], 0.95))
    assert quantile([1, 2, 3, 4, math.inf], 0.75) == 4


def test_one_token_answers_have_no_tpot_and_keep_everything_else(tmp_path: Path) -> None:
    """487 requests of one token: TTFT and E2E of all, TPOT not defined, never 0 and never NaN."""
    summary = summarise(single_tokens(487).end(4870), tmp_path)
    assert summary.outcomes["finished"] == 487
    for name in ("ttft_p99_ms", "e2e_p99_ms"):
        assert (value(summary, name), summary.metrics[name].n) == (5, 487)
    for name in ("tpot_p50_ms", "tpot_p95_censored_ms", "itl_p99_ms", "longest_gap_p95_ms"):
        figure = summary.metrics[name]
        assert (figure.value, figure.absence, figure.n) == (None, Absence.NOT_APPLICABLE, 0)
        assert "0 samples" in figure.note
    table = read_table(tmp_path / "requests.parquet")
    assert table.column("tpot_ms").null_count == 487
    assert set(table.column("tpot_ms_absence").to_pylist()) == {"not_applicable"}
    assert read_table(tmp_path / "gaps.parquet").num_rows == 0


def test_finished_without_a_token_is_no_success_and_no_sample(tmp_path: Path) -> None:
    """No first token means no TTFT and not a success; the claim to have finished is reported as a fault."""
    scene = single_tokens(20, offered=21)
    scene.arrive(20, 200)
    scene.finish(20, 210)
    summary = summarise(scene.end(210), tmp_path)
    assert summary.metrics["ttft_p95_ms"].n == 20
    assert value(summary, "completion_share") == pytest.approx(20 / 21)
    assert not summary.audit.passed
    assert summary.audit.violations[0].message == "finished without a token"
    row = read_table(tmp_path / "requests.parquet").to_pylist()[20]
    assert (row["ttft_ms"], row["ttft_ms_absence"]) == (None, "failed")


def test_preempted_request_counts_its_tokens_once(tmp_path: Path) -> None:
    """Tokens at 50, 60, 70, preempted at 75, then 200, 210: five tokens, gaps 10 10 130 10.

    Of the 13 tokens known then, the newest had never been computed: 12 are computed again.
    """
    summary = summarise(recomputed(), tmp_path)
    assert [value(summary, name) for name in ("ttft_p50_ms", "tpot_p50_ms", "e2e_p50_ms", "longest_gap_max_ms")] == [
        50, 40, 210, 130,
    ]  # fmt: skip
    assert value(summary, "recomputed_tokens") == 12
    assert value(summary, "throughput_tokens_per_s") == pytest.approx(5 / 0.21)


def test_three_outcomes_side_by_side(tmp_path: Path) -> None:
    """100 offered over 60 s: 70 finished with 50 tokens, 20 failed before any token, 10 cut off with 50 tokens each.

    Latency is over the 70; tokens of finished requests 70 x 50 / 60 s, all tokens produced (70 + 10) x 50 / 60 s.
    """
    scene = Scene(100)
    for request in range(100):
        scene.arrive(request, 0)
    residents = [*range(70), *range(90, 100)]
    for request in residents:
        scene.admit(request, 0)
    scene.step(0, 1000, [(request, 10) for request in residents])
    for token in range(1, 50):
        scene.step(1000 * token, 1000 * (token + 1), [(request, 1) for request in residents])
    for request in range(70):
        scene.finish(request, 50_000)
    for request in range(70, 90):
        scene.finish(request, 50_000, "failed")
    for request in range(90, 100):
        scene.finish(request, 60_000, "cut_off")
    summary = summarise(scene.end(60_000), tmp_path)
    assert (summary.outcomes["finished"], summary.outcomes["failed"], summary.outcomes["cut_off"]) == (70, 20, 10)
    assert (value(summary, "ttft_p95_ms"), summary.metrics["ttft_p95_ms"].n) == (1000, 70)
    assert value(summary, "throughput_finished_tokens_per_s") == pytest.approx(70 * 50 / 60)
    assert value(summary, "throughput_tokens_per_s") == pytest.approx(80 * 50 / 60)
    assert value(summary, "completion_share") == pytest.approx(0.7)
    assert summary.metrics["ttft_p95_censored_ms"].absence is Absence.FAILED
    assert value(summary, "ttft_p50_censored_ms") == 1000


def test_tails_are_withheld_below_their_sample_size(tmp_path: Path) -> None:
    summary = summarise(single_tokens(19).end(190), tmp_path)
    assert summary.metrics["ttft_p95_ms"].absence is Absence.INSUFFICIENT_SAMPLES
    assert "p95 needs 20" in summary.metrics["ttft_p95_ms"].note
    marked = summarise(single_tokens(120).end(1200), tmp_path).metrics["ttft_p99_ms"]
    assert (marked.value, "few samples" in marked.note) == (5, True)


def test_cold_requests_are_kept_apart(tmp_path: Path) -> None:
    """Request 0 arrives while the model loads (until 100): its wait is model load, and it enters no warm figure."""
    scene = Scene(2)
    scene.add(Loaded(0, ns(100)))
    scene.arrive(0, 20)
    scene.admit(0, 100)
    scene.step(100, 110, [(0, 10)])
    scene.finish(0, 110)
    scene.arrive(1, 200)
    scene.admit(1, 200)
    scene.step(200, 205, [(1, 10)])
    scene.finish(1, 205)
    summary = summarise(scene.end(205), tmp_path)
    row = read_table(tmp_path / "requests.parquet").to_pylist()[0]
    assert (row["cold_start"], row["model_load_wait_ms"], row["queue_wait_ms"]) == (True, 80, 0)
    assert (value(summary, "ttft_p50_ms"), value(summary, "cold_ttft_mean_ms")) == (5, 90)
    assert summary.cold_requests == 1


def test_warm_up_leaves_out_the_first_by_schedule(tmp_path: Path) -> None:
    """A quarter of 20: requests 0 to 4 are served, stored, and not measured; the window opens with request 5."""
    workload = {"warmup_share": 0.25, "requests": 20}
    summary = summarise(single_tokens(20).end(200), tmp_path, workload=workload)
    assert (summary.offered, summary.measured) == (20, 15)
    assert value(summary, "window_s") == pytest.approx(0.145)
    measured = read_table(tmp_path / "requests.parquet").column("measured").to_pylist()
    assert measured == [False] * 5 + [True] * 15


def test_idle_time_has_a_cause(tmp_path: Path) -> None:
    """Busy 0-10, empty 10-20, then request 1 is held until 35 by a policy that waits for a full batch."""
    from scheduler_core.types.records import Deferred

    scene = Scene(2)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 10, [(0, 10)])
    scene.finish(0, 10)
    scene.arrive(1, 20)
    scene.add(Deferred(ns(20), 1, "waiting_for_batch", 2, 1))
    scene.admit(1, 35)
    scene.step(35, 45, [(1, 10)])
    scene.finish(1, 45)
    summary = summarise(scene.end(45), tmp_path)
    names = ("idle_gap_ms", "idle_gap_policy_ms", "idle_gap_host_ms", "idle_empty_ms")
    assert [value(summary, name) for name in names] == [15, 15, 0, 10]
    assert value(summary, "pool_utilisation") == pytest.approx(20 / 45)


def test_stalled_streams_show_where_means_hide_them(tmp_path: Path) -> None:
    """100 requests of 21 tokens, 20 ms apart; five of them wait 2 s once. TPOT p50 stays 20, the stall share is 5 %."""
    scene = Scene(100)
    for request in range(100):
        scene.arrive(request, 0)
        scene.admit(request, 0)
    scene.step(0, 20, [(request, 10) for request in range(100)])
    late = range(95, 100)
    for token in range(1, 21):
        now = 20 * token
        if token < 20:
            scene.step(now, now + 20, [(request, 1) for request in range(100)])
        else:
            held = [(request, "held_by_policy") for request in late]
            scene.step(now, now + 20, [(request, 1) for request in range(95)], stalled=held)
    for request in range(95):
        scene.finish(request, 420)
    scene.step(420, 2400, [], stalled=[(request, "held_by_policy") for request in late])
    scene.step(2400, 2420, [(request, 1) for request in late])
    for request in late:
        scene.finish(request, 2420)
    summary = summarise(scene.end(2420), tmp_path)
    assert value(summary, "tpot_p50_ms") == 20
    assert value(summary, "itl_p99_ms") == 20
    assert value(summary, "stall_share") == pytest.approx(0.05)
    assert value(summary, "longest_gap_p99_ms") == 2020
    assert summary.longest_gap_causes["stalled: held_by_policy"] == 5


@settings(max_examples=15)
@given(st.integers(0, 500))
def test_waiting_longer_moves_ttft_and_e2e_and_never_tpot(tmp_path_factory: pytest.TempPathFactory, delay: int) -> None:
    """Shifting a record's wait by D moves TTFT and E2E by D and TPOT by 0."""
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, delay)
    scene.step(delay, delay + 30, [(0, 10)])
    scene.step(delay + 30, delay + 50, [(0, 1)])
    scene.finish(0, delay + 50)
    summary = summarise(scene.end(delay + 50), tmp_path_factory.mktemp("shift"))
    names = ("queue_wait_mean_ms", "ttft_p50_ms", "e2e_p50_ms", "tpot_p50_ms")
    assert [value(summary, name) for name in names] == [delay, delay + 30, delay + 50, 20]


def test_slo_line_counts_uncached_prompt_tokens(tmp_path: Path) -> None:
    """TTFT is 5 ms; the line allows 1 + 0.5 per uncached token: 6 ms for 10 uncached tokens, 4 ms for 6."""
    scene = Scene(2)
    for request, hit in ((0, 0), (1, 4)):
        scene.arrive(request, 10 * request)
        scene.admit(request, 10 * request, hit=hit)
        scene.step(10 * request, 10 * request + 5, [(request, 10 - hit)])
        scene.finish(request, 10 * request + 5)
    workload = {"tiers": {"default": {"ttft_ms": "1 + 0.5 per uncached token"}}}
    summary = summarise(scene.end(20), tmp_path, workload=workload)
    tier = summary.tiers["default"]
    assert (tier.offered, tier.met, tier.by_objective) == (2, 1, {"ttft_ms": 1})
    assert tier.by_prompt_tokens == {"1-128": (1, 2)}
    assert value(summary, "goodput_rps") == pytest.approx(1 / 0.015)
    assert value(summary, "hit_rate") == pytest.approx(4 / 20)


def test_look_ups_after_a_preemption_are_no_hits(tmp_path: Path) -> None:
    """The resumed request finds 8 of its own tokens: they count apart, the hit rate stays 0."""
    summary = summarise(found_again(), tmp_path)
    assert (value(summary, "hit_rate"), value(summary, "rehit_tokens")) == (0, 8)


def test_until_a_request_gives_way_the_host_was_busy_for_it_too(tmp_path: Path) -> None:
    """Its step ends at 10; planning the next begins at 13, and takes its place. From 10 to 13 is the host's time, from
    then to 20 it waits again, and nothing is left over.
    """
    scene = Scene(2, source="kernel")
    for request in range(2):
        scene.arrive(request, 0)
        scene.admit(request, 0)
    scene.step(0, 10, [(0, 10), (1, 10)])
    scene.preempt(0, 13)
    scene.step(13, 20, [(1, 1)], lanes=[("host_gap", 10, 13)])
    scene.admit(0, 20)
    scene.step(20, 30, [(0, 11, "recompute"), (1, 1)])
    for request in range(2):
        scene.finish(request, 30)
    records = scene.end(30)
    summary = summarise(records, tmp_path)
    row = read_table(tmp_path / "requests.parquet").to_pylist()[0]
    assert (row["host_gap_ms"], row["requeue_wait_ms"], row["unattributed_ms"]) == (3, 7, 0)
    assert summary.audit.violations == []
    found = [(stretch.kind, stretch.length_ns) for stretch in critical_path(records, 0).stretches]
    assert ("host_gap", ns(3)) in found
    assert sum(length for _, length in found) == ns(30)
