"""Files that the tools themselves wrote, cut to three requests of one run each: two answers and one planned failure.

Each tool played the mock server of this project on loopback (first token after 60 ms, six tokens 10 ms apart) behind a
proxy that failed every fourth request with status 500; the file's name says which version wrote it. Texts, tracebacks
and summaries of the whole run are left out.
"""

from pathlib import Path

import pytest

from scheduler_core.evidence.imported.detect import detect_tool
from scheduler_core.evidence.imported.readers import read_measured
from scheduler_core.evidence.imported.summary import imported_summary
from scheduler_core.types.errors import InputError
from scheduler_core.types.reasons import Outcome

FOLDER = Path(__file__).parent / "measured"
TOOLS = {
    "vllm-0.32.0.json": "vllm-bench",
    "sglang-0.5.23.jsonl": "sglang-bench",
    "aiperf-0.13.0.jsonl": "aiperf",
    "guidellm-0.8.1.json": "guidellm",
    "inference-perf-0.7.0.json": "inference-perf",
    "genai-bench-0.0.5.json": "genai-bench",
    "genai-bench-0.0.5-ms.json": "genai-bench",
}


def test_every_file_is_read_here() -> None:
    assert {path.name for path in FOLDER.iterdir()} == TOOLS.keys()


@pytest.mark.parametrize("name", TOOLS)
def test_what_a_tool_wrote_is_read_as_what_happened(name: str) -> None:
    """Two answers of six tokens, first ones after 60 ms and what the machine took, and a failure with its reason."""
    tool = detect_tool(FOLDER / name)
    assert tool == TOOLS[name]
    run = read_measured(FOLDER / name, tool)
    done = [request for request in run.requests if request.outcome is Outcome.FINISHED]
    (failed,) = [request for request in run.requests if request.outcome is Outcome.FAILED]
    assert "500" in failed.reason or "Internal Server Error" in failed.reason or "planned failure" in failed.reason
    assert (failed.ttft_s, failed.e2e_s) == (None, None)
    assert [request.output_tokens for request in done] == [6, 6]
    for request in done:
        assert request.ttft_s is not None and request.e2e_s is not None
        assert 0.06 <= request.ttft_s < 0.2, "first token after 60 ms, in seconds"
        assert 0.03 <= request.e2e_s - request.ttft_s < 0.2, "five waits of 10 ms"
    summary = imported_summary(run, name=name, arm="a")
    assert summary.audit.passed
    assert (summary.outcomes["finished"], summary.outcomes["failed"]) == (2, 1)


def test_time_counts_from_when_a_request_was_due() -> None:
    """AIPerf's and vLLM's files tell how long a request waited in the client; it is in TTFT, and kept apart."""
    for name in ("aiperf-0.13.0.jsonl", "vllm-0.32.0.json", "guidellm-0.8.1.json"):
        delays = [request.send_delay_s for request in read_measured(FOLDER / name, TOOLS[name]).requests]
        assert all(0 < delay < 0.1 for delay in delays)


def test_chunks_without_a_token_are_said() -> None:
    """The first chunk of a chat stream had no token; vLLM's client counts it, so six tokens have six gaps."""
    run = read_measured(FOLDER / "vllm-0.32.0.json", "vllm-bench")
    assert run.notes[0].startswith("2 of 3 answers had more chunks than tokens")
    assert read_measured(FOLDER / "sglang-0.5.23.jsonl", "sglang-bench").notes == (
        "arrival times are not in this file: order is that of the file",
    )


def test_a_foreign_unit_of_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text((FOLDER / "genai-bench-0.0.5.json").read_text().replace('"_time_unit": "s"', '"_time_unit": "us"'))
    with pytest.raises(InputError, match="_time_unit is 'us'; s or ms"):
        read_measured(path, "genai-bench")
