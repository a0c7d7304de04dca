"""Logs of spans and gateways as traces: counts, times, sharing, and no text left over."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.spec.workload import Trace, WorkloadSpec
from scheduler_core.types.errors import InputError
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.logs.hashing import text_blocks
from scheduler_core.workload.logs.lines import objects
from scheduler_core.workload.logs.readers import read_log
from scheduler_core.workload.logs.rows import LeftOut
from scheduler_core.workload.traces.reader import read_trace

SALT = b"s" * 32


def attribute(key: str, value: Any) -> dict[str, Any]:
    kind = "intValue" if isinstance(value, int) else "stringValue"
    return {"key": key, "value": {kind: str(value)}}


def span(start_ns: int, prompt: int, output: int, text: str = "", conversation: str = "") -> dict[str, Any]:
    said = {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": output}
    return {
        "startTimeUnixNano": str(start_ns),
        "attributes": [
            *(attribute(key, value) for key, value in said.items()),
            attribute("gen_ai.prompt", text),
            attribute("gen_ai.conversation.id", conversation),
        ],
    }


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": [attribute("service.name", "shop")]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}


def test_spans_become_a_trace_that_reads_back(tmp_path: Path) -> None:
    """Two calls 1.5 s apart with 32 tokens of shared text of 64: two shared blocks of 16, two of their own."""
    shared, one, two = "a" * 128, "b" * 128, "c" * 128
    http = {"startTimeUnixNano": "1", "attributes": []}
    data = otlp(span(2_500_000_000, 64, 9, shared + two, "c1"), http, span(1_000_000_000, 64, 5, shared + one, "c1"))
    (tmp_path / "spans.json").write_text(json.dumps(data))
    found = read_log(tmp_path / "spans.json", "otlp", salt=SALT)
    assert found.skipped == {"spans without token counts": LeftOut(1, "line 1, span 2")}
    first, second = (request.blocks for request in found.requests)
    assert len(first) == len(second) == 4
    assert first[:2] == second[:2] and first[2] != second[2]
    out = tmp_path / "trace.jsonl"
    out.write_text("\n".join(found.lines()) + "\n")
    assert "aaaa" not in out.read_text()
    form = {"file": "x", "format": "jsonl", "time_unit": "s", "columns": found.columns, "block_size": 16}
    trace = read_trace(out, Trace.model_validate(form))
    assert len(trace) == 2 and trace.span_ns == 1_500_000_000


def test_gateway_rows_keep_failures_without_output(tmp_path: Path) -> None:
    rows = [
        {"startTime": 100.0, "prompt_tokens": 10, "completion_tokens": 4, "status": "success",
         "messages": [{"role": "user", "content": "hi"}], "metadata": {"user_api_key_team_alias": "search"}},
        {"startTime": "1970-01-01T00:01:41Z", "prompt_tokens": 7, "completion_tokens": 0, "status": "failure"},
        {"startTime": 102.0, "prompt_tokens": "many", "completion_tokens": 1},
        {"note": "no request"},
    ]  # fmt: skip
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_log(path, "litellm", salt=SALT)
    assert [(r.arrival_ns // 10**9, r.prompt_tokens, r.output_tokens) for r in found.requests] == [
        (100, 10, 4),
        (101, 7, 0),
    ]
    assert found.requests[0].tenant == "search"
    assert found.skipped == {
        "rows whose prompt_tokens is no number": LeftOut(1, "line 3"),
        "rows without startTime": LeftOut(1, "line 4"),
    }


def test_without_the_salt_nothing_can_be_confirmed() -> None:
    text = "the quick brown fox " * 20
    mine = text_blocks(text, prompt_tokens=64, block_size=16, salt=b"mine")
    assert mine == text_blocks(text, prompt_tokens=64, block_size=16, salt=b"mine")
    assert not set(mine) & set(text_blocks(text, prompt_tokens=64, block_size=16, salt=b"theirs"))
    assert text_blocks(text, prompt_tokens=15, block_size=16, salt=b"mine") == ()


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        ("{}", "otlp", "holds no usable request"),
        ("{", "litellm", "mine.jsonl line 1: not JSON"),
        ("{}", "csv", "is not one of otlp, litellm"),
    ],
)
def test_what_is_no_such_log_is_refused(content: str, kind: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(content)
    with pytest.raises(InputError, match=words):
        read_log(tmp_path / "f", kind, salt=SALT, source="mine.jsonl")


LITELLM = [{"startTime": float(n), "prompt_tokens": 5, "completion_tokens": 2} for n in range(3)]
BAD = {"startTime": 9.0, "prompt_tokens": "many"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("\n".join(map(json.dumps, [*LITELLM, BAD])), "line 4"),
        ("\n\n" + "\n\n".join(map(json.dumps, [*LITELLM, BAD])) + "\n", "line 9"),
        (json.dumps([*LITELLM, BAD]), "line 1, item 4"),
        (json.dumps([*LITELLM, BAD], indent=1), "line 17"),  # of "[" and three items of five lines, the fourth
        ("\n" + json.dumps([*LITELLM, BAD], indent=1), "line 18"),
        ("[\n " + ",\n ".join(map(json.dumps, [*LITELLM, BAD])) + "\n]", "line 5"),
    ],
)
def test_places_are_lines_of_the_file(text: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(text)
    found = read_log(tmp_path / "f", "litellm", salt=SALT)
    assert len(found.requests) == 3
    assert found.skipped == {"rows whose prompt_tokens is no number": LeftOut(1, place)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(LITELLM[0]) + "\n{\n", "f line 2: not JSON"),
        (json.dumps(LITELLM[0]) + "\n" + '{"a": "\udcff"}', "f line 2: not JSON: 'utf-8' codec"),
        ('[\n {"a": 1},\n {"b": }\n]', "f line 3: not JSON: Expecting value"),
        ('[\n {"a": 1}\n {"b": 2}\n]', "f line 3: not JSON: expecting ','"),
        ('[\n {"a": 1},\n]', "f line 3: not JSON: Expecting value"),
        ("[\n 1\n] 2", "f line 3: not JSON: expecting ',' or the end"),
        ('{\n "a": 1,\n "b"\n}', "f line 4: not JSON: Expecting ':'"),
    ],
)
def test_what_is_no_json_is_refused_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=re.escape(words)):
        read_log(tmp_path / "f", "litellm", salt=SALT)


def test_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    """Rows come before the file is read to its end: a broken last line does not stop the first from coming."""
    (tmp_path / "f").write_text("\n".join([*map(json.dumps, LITELLM), "{"]))
    rows = objects(tmp_path / "f")
    assert [next(rows)[0] for _ in range(3)] == ["line 1", "line 2", "line 3"]
    with pytest.raises(InputError, match="line 4: not JSON"):
        next(rows)


@pytest.mark.parametrize(
    "content",
    [pytest.param(b"[" * 200_000, id="deep"), pytest.param(b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 9, id="broken")],
)
def test_what_no_reader_can_follow_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InputError, match="mine: cannot be read as a LiteLLM log"):
        read_log(tmp_path / "f", "litellm", salt=SALT, source="mine")


def test_a_row_whose_parts_are_others_is_left_out(tmp_path: Path) -> None:
    """SGLang's ``out`` is an object and its latency a number; here they are a list and a word."""
    good = {"event": "request.finished", "timestamp": 5.0, "out": {"meta_info": {
        "prompt_tokens": 3, "completion_tokens": 2, "e2e_latency": 1.0}}}  # fmt: skip
    slow = {**good, "out": {"meta_info": {**good["out"]["meta_info"], "e2e_latency": "slow"}}}  # type: ignore[index]
    (tmp_path / "f").write_text("\n".join(map(json.dumps, [good, {**good, "out": [1]}, slow])))
    found = read_log(tmp_path / "f", "sglang", salt=SALT)
    assert len(found.requests) == 1
    assert found.skipped == {"rows of another form than those of a SGLang request log": LeftOut(2, "line 2")}


def test_azure_2025_is_told_from_2024_by_its_images(tmp_path: Path) -> None:
    head = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
    text = f"{head}\n2024-10-15T12:00:00.269Z,1,300,7\n2024-10-15T12:00:01.269Z,0,20,3\n"
    (tmp_path / "a.csv").write_text(text)
    trace = read_trace(tmp_path / "a.csv", Trace.model_validate({"file": "x"}))
    assert trace.format == "azure-2025" and trace.span_ns == 10**9


def test_llmservingsim_counts_nanoseconds(tmp_path: Path) -> None:
    rows = [{"input_toks": 5, "output_toks": 2, "arrival_time_ns": n * 10**8} for n in range(3)]
    (tmp_path / "w.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trace = read_trace(tmp_path / "w.jsonl", Trace.model_validate({"file": "x"}))
    assert trace.format == "llmservingsim" and trace.span_ns == 2 * 10**8


@pytest.mark.parametrize(
    ("calls", "reason", "rows"),
    [
        ([], "sessions without calls", 1),
        ([{"input_tok_ids": [1, -1]}, {}, {}], "rows whose input_tok_ids are not all whole numbers of 0 or more", 3),
        ([{"tool_duration_ns": "long"}, {}, {}], "rows whose tool_duration_ns is no number", 3),
    ],
)
def test_an_unusable_session_is_left_out_as_a_whole(calls: Any, reason: str, rows: int, tmp_path: Path) -> None:
    usable = {"input_toks": 9, "output_toks": 2, "arrival_time_ns": 0}
    session = {"arrival_time_ns": 0, "sub_requests": [{"input_toks": 9, "output_toks": 2, **call} for call in calls]}
    (tmp_path / "w.jsonl").write_text("\n".join(map(json.dumps, [usable, session])))
    found = read_log(tmp_path / "w.jsonl", "llmservingsim-agentic", salt=SALT)
    assert len(found.requests) == 1
    assert found.skipped == {reason: LeftOut(rows, "line 2, call 1" if calls else "line 2")}


def test_llmservingsim_sessions_wait_for_their_tools(tmp_path: Path) -> None:
    """A session of three calls and a single request between; the second call waits 2 s for its tool, the third none.

    The first two prompts share their first 16 tokens.
    """
    ids = list(range(32))
    calls = [
        {"input_toks": 32, "output_toks": 3, "tool_duration_ns": 2 * 10**9, "input_tok_ids": ids},
        {"input_toks": 32, "output_toks": 4, "tool_duration_ns": 0, "input_tok_ids": [*ids[:16], *[7] * 16]},
        {"input_toks": 60, "output_toks": 5, "tool_duration_ns": 0},
    ]
    rows = [
        {"session_id": "task-0", "arrival_time_ns": 10**9, "sub_requests": calls},
        {"input_toks": 9, "output_toks": 2, "arrival_time_ns": 0},
        {"session_id": "task-1", "arrival_time_ns": 10**9, "sub_requests": [calls[0], {"input_toks": 9}]},
    ]
    (tmp_path / "w.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_log(tmp_path / "w.jsonl", "llmservingsim-agentic", salt=SALT)
    assert found.skipped == {"rows without output_toks": LeftOut(2, "line 3, call 1")}
    first, second = found.requests[1].blocks, found.requests[2].blocks
    assert len(first) == len(second) == 2 and first[0] == second[0] and first[1] != second[1]
    (tmp_path / "t.jsonl").write_text("\n".join(found.lines()))
    spec = WorkloadSpec.model_validate({"trace": {"file": str(tmp_path / "t.jsonl"), **found.reading}})
    assert spec.trace is not None
    requests = freeze(spec, trace=read_trace(tmp_path / "t.jsonl", spec.trace)).requests
    assert [(r.prompt_tokens, r.after, r.arrival_ns) for r in requests] == [
        (9, (), 0),
        (32, (), 10**9),
        (32, (1,), 2 * 10**9),
        (60, (2,), 0),
    ]
