"""Evidence of a server seen from outside: figures worked out by hand from the records of a load client."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.evidence.client.finalise import finalise_client
from scheduler_core.evidence.client.live import ClientSampler
from scheduler_core.evidence.client.streams import Stream
from scheduler_core.evidence.schema import Absence, RunSummary
from scheduler_core.spec.job import Sample
from scheduler_core.spec.workload import Tier
from scheduler_core.types.client_records import Answered, ClientEffort, Deployed, Observed, Sent, Streamed
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.records import Arrived, Finished, Record, RunFinished, RunStarted, decode, encode
from tests.evidence.scenes import ns


class Scene:
    """The records of a run against a server, times in ms."""

    def __init__(self, offered: int) -> None:
        self.records: list[Record] = [
            RunStarted(
                run="r", attempt=1, plan_digest="p", policy_digest="q", policy={"policy": "as_served"}, target={},
                level="external_server", source="client", offered=offered, kv_blocks=0, block_size=16, token_budget=0,
            )
        ]  # fmt: skip
        self.ended = 0

    def request(
        self, number: int, at: float, chunks: list[tuple[float, int]], *, sent: float | None = None,
        outcome: str = "finished", end: float | None = None, reason: str = "", **answered: Any,
    ) -> "Scene":  # fmt: skip
        sent = at if sent is None else sent
        self.records.append(Arrived(ns(at), ns(at), number, 8, 16, "default", "default"))
        self.records.append(Sent(ns(sent), number, 1, 0))
        if chunks:
            self.records.append(Streamed(ns(chunks[-1][0]), [(number, ns(t), n) for t, n in chunks]))
        last = end if end is not None else (chunks[-1][0] if chunks else at)
        said: dict[str, Any] = {"counts": None, "prompt_tokens": None, "cached_tokens": None, "queue_ns": None}
        self.records.append(Answered(ns(last), number, **(said | answered), comments=0, empty=0, done_mark=True))
        tokens = sum(answered.get("counts") or [n for _, n in chunks])
        self.records.append(Finished(ns(last), number, outcome, "stream", reason, tokens))
        self.ended += 1
        return self

    def looks(self, *rows: tuple[float, dict[str, float]], source: str = "s", **more: Any) -> "Scene":
        self.records += [Observed(ns(at), source, "unified", "default", values, **more) for at, values in rows]
        return self

    def finalise(self, folder: Path, **tier: Any) -> RunSummary:
        end = max(getattr(record, "at_ns", 0) for record in self.records)
        self.records.append(RunFinished(end, True, "every request ended", 0, 0))
        tiers = {"default": Tier(**tier)}
        return finalise_client(self.records, folder=folder, arm="a", repeat=0, tiers=tiers)


def test_chunks_of_several_tokens(tmp_path: Path) -> None:
    """Chunks at 100 (1), 130 (3), 160 (3): 7 tokens, TTFT 100, TPOT 60 / 6 = 10, chunk gaps 30 and 30, ITL 10.

    Steady TPOT leaves out the first token gap: 50 / 5 = 10. Rate over the window of 160 ms: 7 / 0.16 = 43.75 a second.
    """
    summary = Scene(1).request(0, 0, [(100, 1), (130, 3), (160, 3)]).finalise(tmp_path)
    value = {name: figure.value for name, figure in summary.metrics.items()}
    assert summary.audit.passed, summary.audit.violations
    assert (value["ttft_mean_ms"], value["tpot_mean_ms"], value["tpot_steady_mean_ms"]) == (100, 10, 10)
    assert (value["chunk_gap_p50_ms"], value["itl_p50_ms"], value["e2e_mean_ms"]) == (30, 10, 160)
    assert value["longest_gap_max_ms"] == 30  # nobody saw a token in between
    assert value["throughput_tokens_per_s"] == pytest.approx(43.75)
    assert value["chunk_tokens_mean"] == pytest.approx(7 / 3)


def test_an_answer_without_a_token_has_no_chunk(tmp_path: Path) -> None:
    """One answer of chunks of 1 and 3 tokens, and one that finished empty: 4 tokens in 2 chunks."""
    scene = Scene(2).request(0, 0, [(100, 1), (130, 3)]).request(1, 0, [], end=50)
    assert scene.finalise(tmp_path).metrics["chunk_tokens_mean"].value == 2


def test_token_gaps_add_up_to_the_nanosecond() -> None:
    stream = Stream(Arrived(0, 0, 0, 1, 9, "t", "t"))
    stream.chunks = [(100, 2), (110, 3), (111, 4)]
    gaps = [gap for _, gap in stream.token_gaps()]
    assert gaps == [0, 4, 3, 3, 1, 0, 0, 0]
    assert sum(gaps) == 11 and len(gaps) == 9 - 1
    assert stream.longest() == (10, 2, 110)


def test_latency_counts_from_the_intended_send_time(tmp_path: Path) -> None:
    """Due at 10, sent at 14, first token at 60: TTFT 50 of which 4 are the client's own."""
    summary = Scene(1).request(0, 10, [(60, 1), (80, 1)], sent=14).finalise(tmp_path)
    assert summary.metrics["ttft_mean_ms"].value == 50
    assert summary.metrics["send_delay_mean_ms"].value == 4
    assert summary.metrics["e2e_mean_ms"].value == 70


def test_no_first_token_is_no_sample_and_no_success(tmp_path: Path) -> None:
    scene = Scene(2).request(0, 0, [(100, 1), (120, 1)])
    scene.request(1, 0, [], outcome="failed", end=50, reason="the stream ended without a token")
    summary = scene.finalise(tmp_path)
    assert summary.metrics["ttft_mean_ms"].n == 1 and summary.metrics["ttft_mean_ms"].value == 100
    assert summary.metrics["completion_share"].value == 0.5
    assert summary.reasons == {"failed: stream: the stream ended without a token": 1}
    assert summary.audit.passed


def test_cost_of_a_server_counts_the_prompts_that_its_client_knows_were_computed(tmp_path: Path) -> None:
    """Prompts of 8 tokens; a second at 3.60 an hour: 0.001.

    Request 0 finds 3 of its prompt and gives 4 tokens: 5 + 4. Request 1 fails after 3 tokens: 8 + 3. Request 2 fails
    without one: what was computed of its prompt nobody knows, and the figure says so.
    """
    scene = Scene(3).request(0, 0, [(100, 2), (1000, 2)], cached_tokens=3)
    scene.request(1, 0, [(300, 3)], outcome="failed", end=400, reason="gone")
    scene.request(2, 0, [], outcome="failed", end=500, reason="gone")
    scene.records[0] = replace(scene.records[0], target={"server": {"sources": [{"price_per_hour": 3.6}]}})  # type: ignore[arg-type]
    found = scene.finalise(tmp_path).metrics
    assert found["cost_of_devices"].value == pytest.approx(0.001)
    assert found["cost_per_million_tokens"].value == pytest.approx(250)
    assert found["wasted_work_share"].value == pytest.approx(11 / 20)
    assert found["wasted_tokens_share"].value == pytest.approx(3 / 7)
    assert found["cost_of_failures"].value == pytest.approx(0.00055)
    assert found["cost_of_failures"].note.endswith("nobody saw what was computed: 1")


def test_three_counts_side_by_side_and_throughput_says_what_it_counts(tmp_path: Path) -> None:
    """70 finished, 20 failed, 10 cut off with 50 tokens each, all in 60 s: 4,000 tokens, 3,500 of them finished."""
    scene = Scene(100)
    for number in range(70):
        scene.request(number, 0, [(1000 + t * 10, 1) for t in range(50)], end=60_000)
    for number in range(70, 90):
        scene.request(number, 0, [], outcome="failed", end=500)
    for number in range(90, 100):
        scene.request(number, 0, [(1000 + t * 10, 1) for t in range(50)], outcome="cut_off", end=60_000)
    summary = scene.finalise(tmp_path)
    counts = {name: n for name, n in summary.outcomes.items() if n}
    assert counts == {"finished": 70, "failed": 20, "cut_off": 10}
    assert summary.metrics["ttft_mean_ms"].n == 70
    assert summary.metrics["throughput_tokens_per_s"].value == pytest.approx(4000 / 60)
    assert summary.metrics["throughput_finished_tokens_per_s"].value == pytest.approx(3500 / 60)
    assert summary.metrics["goodput_rps"].value == pytest.approx(70 / 60)


def test_one_token_answers_have_no_tpot(tmp_path: Path) -> None:
    scene = Scene(487)
    for number in range(487):
        scene.request(number, number, [(number + 20, 1)])
    summary = scene.finalise(tmp_path)
    assert summary.metrics["ttft_p50_ms"].value == 20 and summary.metrics["ttft_p50_ms"].n == 487
    assert summary.metrics["tpot_p50_ms"].absence is Absence.NOT_APPLICABLE
    assert summary.metrics["tpot_p50_ms"].note == "not defined (0 samples)"


def test_a_stall_shows_in_the_longest_gap(tmp_path: Path) -> None:
    """5 % of requests stall once for 2 s: the p99 of longest gaps is 2 s, while TPOT hardly moves."""
    scene = Scene(100)
    for number in range(100):
        stall = 2000 if number % 20 == 0 else 0
        scene.request(number, 0, [(50 + t * 20 + (stall if t >= 100 else 0), 1) for t in range(200)])
    summary = scene.finalise(tmp_path)
    assert summary.metrics["longest_gap_p99_ms"].value == pytest.approx(2020)
    assert summary.metrics["stall_share"].value == pytest.approx(0.05)
    assert summary.metrics["tpot_p50_ms"].value == pytest.approx(20)


def test_a_server_s_total_replaces_what_was_counted(tmp_path: Path) -> None:
    summary = Scene(1).request(0, 0, [(100, 1), (140, 1)], counts=[1, 4]).finalise(tmp_path)
    assert summary.audit.passed and summary.output_tokens == 5
    assert summary.metrics["tpot_mean_ms"].value == 10
    assert "do not say" in " ".join(summary.fingerprint["notes"]) or "did not say" in " ".join(
        summary.fingerprint["notes"]
    )


def test_what_only_the_server_could_know_is_typed_as_absent(tmp_path: Path) -> None:
    summary = Scene(1).request(0, 0, [(100, 1), (120, 1)]).finalise(tmp_path)
    for name in ("idle_gap_ms", "overlap_ratio", "exposed_comm_ms", "pool_utilisation", "batch_tokens_mean"):
        assert summary.metrics[name].value is None and summary.metrics[name].absence is Absence.NOT_MEASURED, name
    for name in ("queue_length_mean", "hit_rate", "preemptions", "peak_kv_blocks", "transfer_bytes"):
        assert summary.metrics[name].value is None and summary.metrics[name].absence is Absence.UNSUPPORTED, name


def test_figures_from_metric_pages(tmp_path: Path) -> None:
    """Waiting 0 until 50, 4 until 100, then 2 until 200: mean 2 over the window of 200 ms. 30 of 120 tokens hit."""
    scene = Scene(1).request(0, 0, [(100, 1), (200, 1)])
    scene.looks(
        (0, {"waiting": 0, "kv_share": 0.1, "cache_hits": 0, "cache_lookups": 0, "preemptions": 0}),
        (50, {"waiting": 4, "kv_share": 0.5, "cache_hits": 10, "cache_lookups": 60, "preemptions": 1}),
        (100, {"waiting": 2, "kv_share": 0.3, "cache_hits": 30, "cache_lookups": 120, "preemptions": 1}),
    )
    summary = scene.finalise(tmp_path)
    value = {name: figure.value for name, figure in summary.metrics.items()}
    assert value["queue_length_mean"] == pytest.approx((0 * 50 + 4 * 50 + 2 * 100) / 200)
    assert (value["queue_length_max"], value["kv_peak_share"], value["preemptions"]) == (4, 0.5, 1)
    assert value["hit_rate"] == 0.25
    assert summary.metrics["hit_rate"].note == "from the server's metrics"


def test_the_longest_gap_is_named_by_what_the_counters_did(tmp_path: Path) -> None:
    """A preemption is counted between 100 and 400; prompts only between 500 and 600."""
    scene = Scene(2).request(0, 0, [(100, 1), (390, 1), (400, 1)]).request(1, 0, [(500, 1), (590, 1)])
    base = {"waiting": 0.0}
    scene.looks(
        (90, base | {"preemptions": 0, "prompt_tokens": 10}),
        (450, base | {"preemptions": 1, "prompt_tokens": 10}),
        (650, base | {"preemptions": 1, "prompt_tokens": 90}),
    )
    causes = scene.finalise(tmp_path).longest_gap_causes
    assert causes == {"a preemption in the server": 1, "prefill of other requests": 1}


def test_counts_of_server_and_client_are_held_against_each_other(tmp_path: Path) -> None:
    scene = Scene(5)
    for number in range(5):
        scene.request(number, 10 * number, [(10 * number + 5, 1)])
    scene.looks((0, {"finished": 0}), (500, {"finished": 6}))
    notes = scene.finalise(tmp_path).fingerprint["notes"]
    assert any("server counted 6 finished requests, the client 5" in note for note in notes), notes


def test_a_void_run_says_why(tmp_path: Path) -> None:
    scene = Scene(1).request(0, 0, [(100, 1), (120, 1)])
    scene.records.append(ClientEffort(ns(120), 1, 0.1, 1.0, 0.2, 0, 0, 1, 0, 0, 0, 0, 0, None, None, "it was late"))
    scene.records.append(Deployed("vllm", "0.33.0", {"batch.token_budget": 2048}, "emptied", []))
    summary = scene.finalise(tmp_path)
    assert summary.void == "it was late" and summary.complete
    assert summary.deployment == {"server": "vllm", "version": "0.33.0", "settings.batch.token_budget": 2048}


@pytest.mark.parametrize(("told", "share"), [({"real_time_processes": 3}, 0.75), ({}, None)])
def test_the_record_says_how_many_client_processes_ran_in_real_time(
    tmp_path: Path, told: dict[str, int], share: float | None
) -> None:
    """3 of 4 did; a record from before this was told is read all the same, and its figure is absent."""
    effort = ClientEffort(ns(120), 4, 0.1, 1.0, 0.2, 0, 0, 1, 0, 0, 0, 0, 0, None, None, "", **told)
    written = {name: value for name, value in encode(effort).items() if name != "real_time_processes" or told}
    read = decode(json.loads(json.dumps(written)))
    assert read == effort
    scene = Scene(1).request(0, 0, [(100, 1), (120, 1)])
    scene.records.append(read)
    figure = scene.finalise(tmp_path).metrics["client_real_time_share"]
    assert figure.value == share and (figure.absence is Absence.NOT_MEASURED) is (share is None)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda r: r[:1] + r[2:], "offered = outcomes"),
        (lambda r: [*r[:3], Streamed(ns(1), [(0, ns(-5), 1)]), *r[3:]], "R25 ordering"),
        (lambda r: [*r[:3], Streamed(ns(9), [(0, ns(9), 0)]), *r[3:]], "tokens counted"),
        (lambda r: [x for x in r if not isinstance(x, Streamed)], "emitted = declared"),
        (lambda r: [*r, r[5]], "offered = outcomes"),
    ],
)
def test_the_audit_finds_records_that_lie(tmp_path: Path, change: Any, rule: str) -> None:
    scene = Scene(1).request(0, 0, [(100, 1), (120, 1)])
    scene.records = change(scene.records)
    report = scene.finalise(tmp_path).audit
    assert not report.passed
    assert rule in {violation.rule for violation in report.violations}


def test_records_without_a_start_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="begin with run_started"):
        finalise_client([Sent(0, 0, 1, 0)], folder=tmp_path, arm="a", repeat=0, tiers={})


def test_live_samples_show_what_is_known_and_leave_the_rest_absent() -> None:
    samples: list[Sample] = []
    sampler = ClientSampler(interval_ns=ns(100), on_sample=samples.append)
    scene = Scene(1).request(0, 0, [(50, 1), (70, 1)], end=250)
    for record in scene.records[1:]:
        sampler.write(record)
    sampler.flush()
    first = samples[0]
    assert (first.in_flight, first.ttft_p50_ms, first.gap_p50_ms) == (1, 50, 20)
    assert first.waiting is None and first.kv_used is None and first.preemptions is None and first.busy_share is None
    assert samples[-1].done == 1 and samples[-1].in_flight == 0
    sampler.write(Observed(ns(300), "s", "unified", "default", {"waiting": 3, "kv_used": 10, "kv_blocks": 40}))
    sampler.flush()
    assert (samples[-1].waiting, samples[-1].kv_used, samples[-1].kv_free) == (3, 10, 30)
