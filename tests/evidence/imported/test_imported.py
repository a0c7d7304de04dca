"""Other tools' files: units, failures and clocks as they are, and verdicts on them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.evidence.imported.matched import matched
from scheduler_core.evidence.imported.measured import Measured, MeasuredRun, fill_absent
from scheduler_core.evidence.imported.readers import READERS, read_measured
from scheduler_core.evidence.imported.summary import imported_summary
from scheduler_core.evidence.schema import Absence
from scheduler_core.types.errors import InputError
from scheduler_core.types.reasons import Outcome
from scheduler_core.verdict.decide import decide_imported

# Two requests, the same in every form: 100 prompt tokens; tokens at 0.5, 0.6, 0.8 s; and one that failed.
CSV = """prompt_tokens,generation_tokens,ttft,generation_time,launch_time,finish_time
100,3,0.5,0.3,1000.0,1000.8
"""
VLLM = {"input_toks": 100, "output_toks": 3, "arrival_time": 1.7e9, "queued_ts": 50.0, "scheduled_ts": 50.2,
        "first_token_ts": 50.5, "last_token_ts": 50.8}  # fmt: skip
BENCH = {"input_lens": [100, 100], "output_lens": [3, 0], "ttfts": [0.5, 0.0], "itls": [[0.1, 0.2], []],
         "errors": ["", "Internal Server Error"], "start_times": [7.0, 8.0]}  # fmt: skip
AIPERF = [
    {"metadata": {"request_start_ns": 10**9, "benchmark_phase": "warmup"}, "metrics": {}, "error": None},
    {"metadata": {"request_start_ns": 2 * 10**9, "benchmark_phase": "profiling", "was_cancelled": False},
     "metrics": {"input_sequence_length": {"value": 100, "unit": "tokens"},
                 "output_sequence_length": {"value": 3, "unit": "tokens"},
                 "time_to_first_token": {"value": 500, "unit": "ms"}, "request_latency": {"value": 800, "unit": "ms"},
                 "inter_chunk_latency": {"value": [100, 200], "unit": "ms"}}, "error": None},
    {"metadata": {"request_start_ns": 3 * 10**9, "benchmark_phase": "profiling", "was_cancelled": False},
     "metrics": {"error_isl": {"value": 100, "unit": "tokens"}}, "error": {"message": "Internal Server Error"}},
]  # fmt: skip
GUIDE = {"benchmarks": [{"requests": {
    "successful": [{"request_start_time": 7.0, "prompt_tokens": 100, "output_tokens": 3,
                    "time_to_first_token_ms": 500, "request_latency": 0.8}],
    "errored": [{"request_start_time": 8.0, "prompt_tokens": 100, "error": "Internal Server Error"}]}}]}  # fmt: skip
PERF = [
    {"start_time": 7.0, "end_time": 7.8, "info": {"input_tokens": 100, "output_tokens": 3,
                                                  "output_token_times": [7.5, 7.6, 7.8]}, "error": None},
    {"start_time": 8.0, "end_time": 8.1, "info": {"input_tokens": 100}, "error": "Internal Server Error"},
]  # fmt: skip
GENAI = {"individual_request_metrics": [
    {"num_input_tokens": 100, "num_output_tokens": 3, "ttft": 0.5, "e2e_latency": 0.8, "error_code": None},
    {"num_input_tokens": 100, "error_code": 500, "error_message": "Internal Server Error"}]}  # fmt: skip

FILES: dict[str, str] = {
    "llm-d": CSV,
    "vllm-requests": json.dumps(VLLM),
    "vllm-bench": json.dumps(BENCH),
    "sglang-bench": json.dumps({"old": 1}) + "\n" + json.dumps(BENCH),
    "aiperf": "\n".join(json.dumps(row) for row in AIPERF),
    "guidellm": json.dumps(GUIDE),
    "inference-perf": json.dumps(PERF),
    "genai-bench": json.dumps(GENAI),
}


@pytest.mark.parametrize("tool", READERS)
def test_one_stream_reads_the_same_from_every_tool(tool: str, tmp_path: Path) -> None:
    """TTFT 500 ms, end-to-end 800 ms, TPOT (800 - 500) / 2 = 150 ms; the failure is no latency sample."""
    path = tmp_path / "file"
    path.write_text(FILES[tool])
    run = read_measured(path, tool)
    summary = imported_summary(run, name="r", arm="a")
    values = {name: summary.metrics[name].value for name in ("ttft_mean_ms", "e2e_mean_ms", "tpot_mean_ms")}
    assert values == {name: pytest.approx(value) for name, value in
                      (("ttft_mean_ms", 500), ("e2e_mean_ms", 800), ("tpot_mean_ms", 150))}  # fmt: skip
    if tool not in ("llm-d", "vllm-requests"):
        assert (summary.outcomes["finished"], summary.outcomes["failed"]) == (1, 1)
        assert summary.reasons == {"failed: Internal Server Error": 1}
    assert (summary.level, summary.source, summary.audit.passed) == ("imported", "imported", True)
    assert summary.metrics["pool_utilisation"].absence is Absence.NOT_MEASURED
    gaps = {"vllm-bench", "sglang-bench", "aiperf", "inference-perf"}
    assert (summary.metrics["longest_gap_max_ms"].value == pytest.approx(200)) == (tool in gaps)


@pytest.mark.parametrize(
    ("users", "sent_s", "rate"), [(4, None, None), (1, None, None), (4, 0.03, 33.3), (1, 0.2, 5.0)]
)
def test_the_rate_is_that_of_a_schedule(users: int, sent_s: float | None, rate: float | None) -> None:
    """Requests of 100 ms, of 4 or 1 users who ask again 2 ms after an answer, or sent every 30 or 200 ms regardless.

    At one each 200 ms no two are on their way at once, as with one user, but each is sent long after the last answer.
    """
    times = [0.102 * (place // users) if sent_s is None else sent_s * place for place in range(40)]
    run = MeasuredRun("t", tuple(Measured(at, 10, 5, 0.05, 0.1) for at in times))
    offered = imported_summary(run, name="r", arm="a").metrics["offered_rps"]
    assert offered.value == (None if rate is None else pytest.approx(rate, rel=0.01))
    assert (offered.absence is Absence.NOT_APPLICABLE) == (rate is None)


def test_chunks_of_several_tokens_are_no_token_gaps(tmp_path: Path) -> None:
    """Chunks at 100 (1 token), 130 (3) and 160 (3): seven tokens, TPOT (160 - 100) / 6 = 10, no token gaps claimed."""
    data = {"input_lens": [5], "output_lens": [7], "ttfts": [0.1], "itls": [[0.03, 0.03]], "start_times": [0.0]}
    path = tmp_path / "file"
    path.write_text(json.dumps(data))
    run = read_measured(path, "vllm-bench")
    summary = imported_summary(run, name="r", arm="a")
    assert summary.metrics["tpot_mean_ms"].value == pytest.approx(10)
    assert summary.metrics["itl_p50_ms"].absence is Absence.NOT_MEASURED
    assert run.requests[0].gaps_s == (0.03, 0.03)


def test_more_chunks_than_tokens_lose_no_gap() -> None:
    """A tool that counts 2 tokens in 4 chunks, 10, 20 and 60 ms apart: the median gap is 20, of three."""
    answer = Measured(0.0, 9, 2, 0.1, 0.19, Outcome.FINISHED, gaps_s=(0.01, 0.02, 0.06))
    summary = imported_summary(MeasuredRun("vllm-bench", (answer,)), name="r", arm="a")
    gap = summary.by_tool["inference-perf"]["itl_p50_ms"]
    assert gap.value == pytest.approx(20) and gap.n == 3


def test_timings_count_from_when_a_request_was_due(tmp_path: Path) -> None:
    """Due at 7.0, sent at 7.1, tokens from 7.5 to 7.8, stream closed at 8.0: TTFT 500 and end-to-end 800 ms."""
    row = {
        "request_start_time": 7.1, "prompt_tokens": 100, "output_tokens": 3, "time_to_first_token_ms": 400,
        "request_latency": 0.9, "info": {"timings": {
            "targeted_start": 7.0, "request_start": 7.1, "first_token_iteration": 7.5, "last_token_iteration": 7.8}},
    }  # fmt: skip
    path = tmp_path / "file"
    path.write_text(json.dumps({"benchmarks": [{"requests": {"successful": [row]}}]}))
    run = read_measured(path, "guidellm")
    figures = imported_summary(run, name="r", arm="a").metrics
    assert [figures[name].value for name in ("ttft_mean_ms", "e2e_mean_ms")] == [pytest.approx(500), pytest.approx(800)]
    assert "targeted start" in run.notes[0]


def test_an_error_object_is_told_in_its_own_words(tmp_path: Path) -> None:
    answer = {"output_tokens": 0, "output_token_times": []}
    row = {"start_time": 1.0, "end_time": 2.0, "info": {"input_tokens": 9, "response_metrics": answer},
           "error": {"error_type": "ClientError", "error_msg": "connection reset"}}  # fmt: skip
    path = tmp_path / "file"
    path.write_text(json.dumps([row]))
    assert read_measured(path, "inference-perf").requests[0].reason == "connection reset"


def test_mixed_clocks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps({**VLLM, "first_token_ts": 49.0}))
    with pytest.raises(InputError, match="line 1: first_token_ts - queued_ts is -1 s: a duration cannot be negative"):
        read_measured(path, "vllm-requests")


@pytest.mark.parametrize(("bad", "message"), [("NaN", "finite number"), ("", "a number was expected"), ("x", "number")])
def test_bad_rows_are_refused_by_line(bad: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(CSV + f"100,3,{bad},0.3,1000.0,1000.8\n")
    with pytest.raises(InputError, match=f"line 3: ttft .*{message}"):
        read_measured(path, "llm-d")


def test_absent_requests_count_as_failed(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    head, row = CSV.splitlines()
    rows = [row.replace("100,3", f"{prompt},3") for prompt in (100, 200, 300)]
    whole.write_text("\n".join([head, *rows]))
    part.write_text("\n".join([head, rows[0], rows[2]]))
    reference, run = read_measured(whole, "llm-d"), read_measured(part, "llm-d")
    filled = fill_absent(run, reference)
    assert [request.outcome for request in filled.requests] == [Outcome.FINISHED, Outcome.FAILED, Outcome.FINISHED]
    assert filled.plan_digest() == reference.plan_digest() != run.plan_digest()
    found = matched(reference, filled)
    assert found is not None
    assert (found.requests, found.only_baseline, found.e2e_p50_ms) == (2, 1, 0)


TRACES = os.environ.get("HEADWAY_TRACES")
MEASURED = Path(TRACES or ".") / "llmd_measured"
needs_traces = pytest.mark.skipif(not TRACES, reason="HEADWAY_TRACES names no folder of traces")


def cells() -> list[Any]:
    pairs = (("exp0_vllm", "exp0_llmd"), ("exp2_vllm", "exp2_llmd"), ("exp4_vllm", "exp4_llmd"),
             ("exp4_vllm", "exp4_lmcache"))  # fmt: skip
    return [
        pytest.param(MEASURED / base / path.name, path, id=f"{other}-{path.stem}")
        for base, other in pairs
        for path in sorted((MEASURED / other).glob("*.csv"))
    ] or [pytest.param(None, None, id="none")]


@pytest.mark.traces
@needs_traces
@pytest.mark.parametrize(("base", "other"), cells())
def test_one_run_per_cell_is_not_enough_evidence(base: Path, other: Path) -> None:
    old = read_measured(base, "llm-d")
    new = fill_absent(read_measured(other, "llm-d"), old)
    runs = [imported_summary(old, name="b", arm="vllm"), imported_summary(new, name="c", arm="other")]
    found = decide_imported("cell", runs, baseline="vllm").comparisons[0]
    assert (found.decision, found.exit_code) == ("tune", 10), found.headline
    assert "1 pair of runs, at least 5 are needed" in found.headline
    assert found.next_steps[0].title == "5 pairs instead of 1"
    difference = matched(old, new)
    assert difference is not None
    assert difference.requests == len(new.requests) - sum(r.outcome is Outcome.FAILED for r in new.requests)


@pytest.mark.traces
@needs_traces
def test_servers_own_records_give_the_publishers_figures() -> None:
    """The publisher's table, in ms: TTFT 65456.6 / 60110.9 / 137356.3, TPOT 32.4 / 30.8 / 56.0 (mean, median, p99)."""
    run = read_measured(MEASURED.parent / "llmservingsim/rtx4090_llama31_8b/vllm_requests.jsonl", "vllm-requests")
    figures = imported_summary(run, name="r", arm="vllm").metrics
    for field, expected in (("ttft", (65456.6, 60110.9, 137356.3)), ("tpot", (32.4, 30.8, 56.0))):
        found = [figures[f"{field}_{kind}_ms"].value for kind in ("mean", "p50", "p99")]
        assert found == [pytest.approx(value, abs=0.051) for value in expected]
