"""Metric pages: read by type, mapped by version, counted over restarts, never 0 for what is not exported."""

from pathlib import Path
from typing import Any

import pytest

from gpu_runner.server.mock.behaviour import Behaviour, Scheduled, Scripted
from gpu_runner.server.mock.stats import Stats
from gpu_runner.server.observe.mapping import SGLANG, VLLM, map_of, read_levels, read_totals
from gpu_runner.server.observe.page import Page
from gpu_runner.server.observe.source import Growth
from scheduler_core.evidence.client.observations import LEVELS, TOTALS
from scheduler_core.evidence.schema import Absence
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Affine, Profile
from scheduler_core.types.client_records import Observed
from tests.server.playing import evenly, play

PROFILE = Profile(
    name="p", model="m", device="d", dtype="none", residual_share=0, drift_share=0, held_out_error_share=0, domain={},
    cost=Affine(base_ns=2e6, prefill_token_ns=20e3, decode_request_ns=100e3, context_token_ns=10),
    steps_measured=1, measured_on={},
)  # fmt: skip


def scheduled(dialect: Any, **policy: Any) -> Behaviour:
    preset = "vllm_v1" if dialect == "vllm" else "sglang"
    from scheduler_core.policies.resolving import resolve

    spec = resolve(PolicySpec.model_validate({"policy": preset, **policy}))
    return Behaviour(dialect=dialect, scheduled=Scheduled(policy=spec, profile=PROFILE, kv_blocks=64))


def test_every_mapped_name_is_one_that_evidence_knows() -> None:
    for found in (VLLM, SGLANG):
        assert set(found.levels) <= set(LEVELS)
        assert set(found.totals) <= set(TOTALS)


def test_types_come_from_the_page_not_from_endings_of_names() -> None:
    """A histogram whose name ends in _total, and gauges that end in _created beside every counter."""
    page = Page.read(Stats().page("vllm", "m", ()))
    assert page.types["vllm:iteration_tokens_total"] == "histogram"
    assert page.total("vllm:iteration_tokens_total") is None
    assert page.total("vllm:iteration_tokens_total_count") == 0
    assert page.types["vllm:num_preemptions_created"] == "gauge"
    assert read_totals(VLLM, page)["preemptions"] == 0
    assert map_of(page) is VLLM


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("vllm:gpu_cache_usage_perc 0.25\n", "kv_share", 0.25),
        ("vllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc 0.25\n", "kv_share", 0.5),
        ('vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n', "kv_share", 0.4),
        ('vllm:num_requests_waiting{engine="0"} 2\nvllm:num_requests_waiting{engine="1"} 3\n', "waiting", 5),
        ("sglang:kv_used_tokens 64\nsglang:page_size 16\n", "kv_used", 4),
        ("sglang:num_queue_reqs 3\n", "waiting", 3),
        ("llamacpp:requests_deferred 2\n", "waiting", 2),
    ],
)
def test_names_are_mapped_by_server_and_version(text: str, name: str, value: float) -> None:
    page = Page.read(text)
    found = map_of(page)
    assert found is not None
    assert read_levels(found, page)[name] == pytest.approx(value)


def test_a_page_of_nothing_known_has_no_map() -> None:
    assert map_of(Page.read("node_load1 0.5\n")) is None
    with pytest.raises(ValueError, match="no metrics"):
        Page.read("\n")


def test_a_page_that_vllm_served_after_36_requests() -> None:
    """Recorded from vLLM 0.32.0: 10,353 prompt and 2,512 output tokens, no hit, queued 1.04 ms in all."""
    page = Page.read((Path(__file__).parent / "samples" / "vllm_metrics.txt").read_text())
    assert map_of(page) is VLLM
    assert read_levels(VLLM, page) == {"waiting": 0, "running": 0, "kv_share": 0, "kv_blocks": 2427, "kv_used": 0}
    totals = read_totals(VLLM, page)
    assert (totals["prompt_tokens"], totals["output_tokens"], totals["finished"]) == (10_353, 2_512, 36)
    assert (totals["cache_lookups"], totals["cache_hits"], totals["preemptions"]) == (10_353, 0, 0)
    assert totals["queue_n"] == 36 and totals["queue_s"] == pytest.approx(1.04e-3, rel=1e-3)
    assert page.types["vllm:iteration_tokens_total"] == "histogram"
    assert page.types["vllm:num_preemptions_created"] == "gauge"


def test_counters_that_go_back_are_a_restart_and_never_a_negative_rate() -> None:
    """100, 130, then 5 after a restart, then 9: growth 0, 30, 35, 39."""
    growth = Growth()
    seen = [growth.take({"n": value}) for value in (100.0, 130.0, 5.0, 9.0)]
    assert [totals["n"] for totals, _ in seen] == [0, 30, 35, 39]
    assert [restarted for _, restarted in seen] == [False, False, True, False]


def test_a_late_publication_is_still_counted(tmp_path: Path) -> None:
    """One warm-up and five requests, samples 300 ms late: the client's five decide, and the server's are waited for."""
    behaviour = Behaviour(scripted=Scripted(ttft_ms=5, gap_ms=1), publish_delay_ms=300)
    played = play(behaviour, evenly(5, gap_ms=10), tmp_path, scrape_ms=50, warmup_requests=1)
    assert played.summary.metrics["ttft_mean_ms"].n == 5
    assert not any("the server counted" in note for note in played.summary.fingerprint["notes"])


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_queue_kv_and_hits_come_from_a_scheduling_server(dialect: Any, tmp_path: Path) -> None:
    """Twelve prompts of 64 tokens sharing their first 48, at most four at once: a queue, KV in use, and hits."""
    requests = evenly(12, gap_ms=2, prompt=64, output=20, prefix_blocks=(1, 2, 3))
    played = play(scheduled(dialect, batch={"size": 4}), requests, tmp_path, scrape_ms=50)
    assert played.summary.outcomes["finished"] == 12
    assert played.value("queue_length_max") >= 1
    assert 1 <= played.value("running_max") <= 4
    assert 0 < played.value("kv_peak_share") <= 1
    true_hits = sum(item["cached"] for item in played.truth.values())
    assert true_hits >= 48
    assert played.value("hit_rate") == pytest.approx(true_hits / (12 * 64), abs=0.01)
    seen = [record for record in played.records if isinstance(record, Observed)]
    assert len(seen) >= 3 and all(value >= 0 for record in seen for value in record.values.values())
    if dialect == "sglang":
        assert any(record.values.get("kv_cached", 0) > 0 for record in seen)
    else:
        assert all("kv_cached" not in record.values for record in seen)  # cannot be told from free there


def test_what_a_server_does_not_export_is_said_and_never_0(tmp_path: Path) -> None:
    hidden = ("num_requests_waiting", "kv_cache_usage_perc", "preemptions")
    behaviour = Behaviour(scripted=Scripted(ttft_ms=5, gap_ms=1), hidden_metrics=hidden)
    played = play(behaviour, evenly(4, gap_ms=5), tmp_path, scrape_ms=50)
    for name in ("queue_length_mean", "queue_length_max", "kv_peak_share", "preemptions"):
        figure = played.summary.metrics[name]
        assert figure.value is None and figure.absence is Absence.UNSUPPORTED, name
        assert figure.note == "no metric source exports it"
    assert played.value("hit_rate") == 0  # exported, and it was 0
    assert all(sample["waiting"] is None for sample in played.samples)


def test_a_page_that_fails_does_not_fail_the_run(tmp_path: Path) -> None:
    behaviour = Behaviour(scripted=Scripted(ttft_ms=5, gap_ms=1), dialect="openai")
    sources = [{"url": "http://127.0.0.1:9", "role": "decode", "pool": "d"}]
    played = play(behaviour, evenly(4, gap_ms=5), tmp_path, scrape_ms=50, sources=sources)
    assert played.summary.outcomes["finished"] == 4
    assert any("metrics of http://127.0.0.1:9: cannot connect" in n for n in played.summary.fingerprint["notes"])
