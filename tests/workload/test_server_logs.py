"""Request logs of vLLM, SGLang and Dynamo as traces: what they say, and which flag would have said the rest."""

import gzip
import json
from pathlib import Path
from typing import Any

from scheduler_core.types.time import NS_PER_S
from scheduler_core.workload.logs.readers import read_log
from scheduler_core.workload.logs.rows import LeftOut

SALT = b"s" * 32
PARAMS = "SamplingParams(n=1, temperature=0.0, ignore_eos={ignore}, max_tokens={limit}, min_tokens=0)"


def vllm_line(clock: str, message: str, level: str = "INFO") -> str:
    return f"\x1b[0;36m(ApiServer_0 pid=11)\x1b[0;0m {level} {clock} [request_logger.py:69] {message}"


def received(number: int, clock: str, *, limit: int = 64, ignore: bool = False) -> str:
    params = PARAMS.format(ignore=ignore, limit=limit)
    return vllm_line(clock, f"Received request chatcmpl-{number}: params: {params}, lora_request: None.")


def details(number: int, clock: str, ids: list[int], text: str = "hi") -> str:
    said = f"Request chatcmpl-{number} details: prompt: {text!r}, prompt_token_ids: {ids}, prompt_embeds shape: None."
    return vllm_line(clock, said, "DEBUG")


def answer(number: int, clock: str, ids: list[int], kind: str = "") -> str:
    said = f"Generated response chatcmpl-{number}{kind} details: output_token_ids: {ids}"
    return vllm_line(clock, said, "DEBUG")


def read(folder: Path, kind: str, lines: list[str]) -> Any:
    path = folder / "server.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_log(path, kind, salt=SALT)


def test_vllm_requests_have_the_lengths_of_their_token_ids(tmp_path: Path) -> None:
    """Two prompts of 40 tokens share the first 16; one answer is logged whole, the other in chunks of 2 and 1.

    The third stopped at its limit by force (ignore_eos), which is its length though nothing was logged of its answer.
    """
    shared = list(range(16))
    one, two = shared + [7] * 24, shared + [8] * 24
    trap = "prompt_token_ids: [1, 2, 3] are not mine"
    found = read(
        tmp_path,
        "vllm",
        [
            "INFO:     Started server process",
            details(0, "11-30 10:00:00", one, trap),
            received(0, "11-30 10:00:00"),
            details(1, "11-30 10:00:02", two),
            received(1, "11-30 10:00:02"),
            answer(0, "11-30 10:00:03", [5, 6]),
            answer(1, "11-30 10:00:03", [5, 6], " (streaming delta)"),
            answer(1, "11-30 10:00:04", [7], " (streaming delta)"),
            vllm_line("11-30 10:00:04", "Generated response chatcmpl-1 (streaming complete): output: 'x', "
                                        "finish_reason: streaming_complete"),
            details(2, "11-30 10:00:05", one),
            received(2, "11-30 10:00:05", limit=9, ignore=True),
        ],
    )  # fmt: skip
    assert [(r.prompt_tokens, r.output_tokens) for r in found.requests] == [(40, 2), (40, 3), (40, 9)]
    assert [(r.arrival_ns - found.requests[0].arrival_ns) // NS_PER_S for r in found.requests] == [0, 2, 5]
    first, second, third = (request.blocks for request in found.requests)
    assert len(first) == 2 and first == third
    assert first[0] == second[0] and first[1] != second[1]


def test_vllm_requests_that_say_too_little_are_left_out_with_the_flag_that_would_tell(tmp_path: Path) -> None:
    lines = [
        received(0, "11-30 10:00:00"),
        details(1, "11-30 10:00:01", [1, 2, 3]),
        received(1, "11-30 10:00:01"),
        details(2, "11-30 10:00:02", [1, 2, 3]),
        received(2, "11-30 10:00:02"),
        answer(2, "11-30 10:00:03", [4]),
    ]
    # The line with the parameters comes after the ids and must not forget them.
    found = read(tmp_path, "vllm", lines)
    assert [(r.prompt_tokens, r.output_tokens) for r in found.requests] == [(3, 1)]
    assert {left.first: left.rows for left in found.skipped.values()} == {"line 1": 1, "line 2": 1}
    assert any("log level DEBUG" in reason and "prompt_token_ids" in reason for reason in found.skipped)
    assert any("--enable-log-outputs" in reason for reason in found.skipped)


def test_vllm_lines_name_no_year(tmp_path: Path) -> None:
    """31 December to 1 January is a day; 28 February to 1 March a day, or two where there was a 29th."""
    for days, expected in (
        (["12-31", "01-01"], [0, 1]),
        (["02-28", "03-01"], [0, 1]),
        (["02-28", "02-29", "03-01"], [0, 1, 2]),
    ):
        lines = []
        for number, day in enumerate(days):
            clock = f"{day} 10:00:00"
            lines += [details(number, clock, [1]), received(number, clock, ignore=True, limit=2)]
        found = read(tmp_path, "vllm", lines)
        start = found.requests[0].arrival_ns
        assert [(r.arrival_ns - start) // (86_400 * NS_PER_S) for r in found.requests] == expected


def finished(number: int, at: str, latency: float, obj: dict[str, Any], **meta: Any) -> str:
    said = {"prompt_tokens": 40, "completion_tokens": 5, "e2e_latency": latency, **meta}
    row = {"timestamp": at, "event": "request.finished", "rid": str(number), "obj": obj, "out": {"meta_info": said}}
    return json.dumps(row)


def test_sglang_requests_began_as_long_before_their_end_as_they_took(tmp_path: Path) -> None:
    """Ends at 10:00:05 and 10:00:04.5 after 4 s and 1.5 s: arrivals at 10:00:01 and 10:00:03. 8 + 24 of 80 were hit."""
    received_line = json.dumps({"timestamp": "2026-11-30T10:00:01", "event": "request.received", "rid": "0"})
    found = read(
        tmp_path,
        "sglang",
        [
            "[2026-11-30 10:00:00] Load weight end.",
            received_line,
            finished(1, "2026-11-30T10:00:04.500000", 1.5, {"input_ids": list(range(40))}, cached_tokens=24),
            finished(0, "2026-11-30T10:00:05.000000", 4.0, {"input_ids": [*range(32), *([9] * 8)]}, cached_tokens=8),
            '{"broken',
            finished(2, "2026-11-30T10:00:06", 1.0, {}, completion_tokens=None),
        ],
    )
    assert [r.arrival_ns % (60 * NS_PER_S) / NS_PER_S for r in found.requests] == [1.0, 3.0]
    assert found.observed_hit_share == 32 / 80
    first, second = (request.blocks for request in found.requests)
    assert len(first) == 2 and first == second
    assert found.skipped == {"rows without completion_tokens": LeftOut(1, "line 6")}


def test_sglang_cuts_long_prompts_in_the_middle_and_only_their_beginning_is_used(tmp_path: Path) -> None:
    cut = [*range(1024), "...", *range(1024)]
    text = "a" * 1024 + "..." + "b" * 1024
    found = read(
        tmp_path,
        "sglang",
        [
            finished(0, "2026-11-30T10:00:01", 0.5, {"input_ids": cut}, prompt_tokens=5000),
            finished(1, "2026-11-30T10:00:02", 0.5, {"text": text}, prompt_tokens=5000),
        ],
    )
    assert [len(request.blocks) for request in found.requests] == [1024 // 16, 1024 // 64]


def test_sglang_lines_of_text_say_the_same(tmp_path: Path) -> None:
    line = (
        "[2026-11-30 10:00:05] Finish: obj=GenerateReqInput(rid='7', sampling_params={'max_new_tokens': 5}), "
        "out={'meta_info': {'id': '7', 'prompt_tokens': 40, 'completion_tokens': 5, 'cached_tokens': 16, "
        "'e2e_latency': 2.5}}"
    )
    found = read(tmp_path, "sglang", [line])
    (request,) = found.requests
    assert (request.prompt_tokens, request.output_tokens, request.cached_tokens) == (40, 5, 16)
    assert request.arrival_ns % (60 * NS_PER_S) == 2_500_000_000


def request_end(number: int, end_ms: int, *, hashes: list[int], size: int = 64, **said: Any) -> dict[str, Any]:
    replay = {"trace_block_size": size, "input_length": 130, "input_sequence_hashes": hashes}
    return {
        "schema": "dynamo.agent.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": end_ms,
        "event_source": "dynamo",
        "agent_context": {"session_type_id": "deep_research", "session_id": "s", "trajectory_id": "s:planner"},
        "request": {"request_id": str(number), "model": "m", "output_tokens": 16, "replay": replay, **said},
    }


def test_dynamo_requests_keep_trajectories_and_replay_hashes(tmp_path: Path) -> None:
    """One row tells when it was received, another how long it took; a tool's row and one of other blocks are left out.

    Both share the first of their two whole 64-token blocks of 130 tokens.
    """
    tool = {"event_type": "tool_end", "event_time_unix_ms": 1}
    rows = [
        request_end(0, 9_000, hashes=[2**64 - 1, 5], request_received_ms=4_000, cached_tokens=65),
        tool,
        {"timestamp": 3, "event": request_end(1, 9_000, hashes=[2**64 - 1, 6], total_time_ms=2_500.0)},
        request_end(2, 9_500, hashes=[1], size=128, total_time_ms=1.0),
        request_end(3, 9_500, hashes=[1]),
    ]
    path = tmp_path / "trace.000000.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    found = read_log(path, "dynamo", salt=SALT)
    assert [r.arrival_ns // 1_000_000 for r in found.requests] == [4_000, 6_500]
    assert {(r.prompt_tokens, r.output_tokens, r.tenant, r.session) for r in found.requests} == {
        (130, 16, "deep_research", "s:planner")
    }
    first, second = (request.blocks for request in found.requests)
    assert first[0] == second[0] and first[1] != second[1]
    assert found.block_size == 64
    assert found.observed_hit_share == 0.5
    assert [(left.rows, left.first) for left in found.skipped.values()] == [(1, "line 4"), (1, "line 5")]
