"""Inspection by hand, and the facts known of the public traces."""

import io
import json
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.types.errors import InputError
from scheduler_core.workload.traces.data import same_instants, spread
from scheduler_core.workload.traces.inspection import Inspection, inspect
from tests.workload.traces.test_formats import ALL, BURST_6

CONTRACT = {
    "format",
    "rows",
    "rejected",
    "span_s",
    "rate_rps",
    "prompt_tokens",
    "output_tokens",
    "zero_output_rows",
    "same_instant_groups",
    "digest",
}


def test_inspection_by_hand(mooncake_bytes: bytes) -> None:
    """Four rows at 0, 0, 3, 6 s: rate 3 / 6; seven block ids, of which block 1 is met again twice."""
    found = inspect(io.BytesIO(mooncake_bytes), rate_rps=1.5)
    assert (found.format, found.rows, found.usable_rows, found.rejected) == ("mooncake", 4, 4, [])
    assert (found.span_s, found.rate_rps, found.replay_s) == (6.0, 0.5, 2.0)
    assert (found.prompt_tokens, found.output_tokens, found.one_token_outputs) == (2937, 138, 1)
    assert (found.prompt_tokens_max, found.output_tokens_max, found.output_tokens_min) == (1024, 90, 1)
    assert (found.same_instant_groups, found.same_instant_rows, found.same_instant) == (1, 2, "keep")
    assert (found.block_size, found.blocks, found.prefix_hit_blocks) == (512, 7, 2)
    assert found.prefix_hit_share == 2 / 7
    assert found.time_unit == "times are in milliseconds (ms)"
    assert found.bytes == len(mooncake_bytes)


def test_replay_lasts_the_span_unless_a_rate_is_given(mooncake_bytes: bytes) -> None:
    assert inspect(io.BytesIO(mooncake_bytes)).replay_s == 6.0


@pytest.mark.parametrize("name", ALL)
def test_findings_are_plain_json_with_the_contract_keys(name: str) -> None:
    found = inspect(io.BytesIO(ALL[name])).canonical()
    assert set(found) >= CONTRACT
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert Inspection.model_validate(found).canonical() == found


def test_rejected_rows_say_line_and_reason() -> None:
    found = inspect(io.BytesIO(BURST_6)).canonical()
    assert found["rejected"] == [{"line": 3, "reason": "no prompt and no output tokens (a failed call): left out"}]
    assert (found["rows"], found["usable_rows"], found["rejected_rows"], found["zero_output_rows"]) == (3, 2, 1, 1)


def test_many_rejected_rows_are_counted_and_listed_up_to_a_number() -> None:
    found = inspect(io.BytesIO(BURST_6 + b"200,ChatGPT,5,0,5,Conversation log\n" * 1500))
    assert (found.rows, found.rejected_rows, len(found.rejected)) == (1503, 1501, 1000)


def test_columns_that_are_not_read_are_said() -> None:
    assert inspect(io.BytesIO(BURST_6)).rules[-1] == "columns not read: 'Model', 'Total tokens', 'Log Type'"
    assert not [rule for rule in inspect(io.BytesIO(ALL["azure-2023"])).rules if "not read" in rule]


def test_a_burst_has_no_rate_and_is_warned_of() -> None:
    row = b"2023-11-16 18:15:46.6805900,374,44\n"
    found = inspect(io.BytesIO(b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + row * 3))
    assert (found.span_s, found.rate_rps, found.replay_s, found.same_instant_groups) == (0.0, None, 0.0, 1)
    assert found.warnings == ["all rows have one time: the replay is a single burst"]


def test_lengths_without_times() -> None:
    found = inspect(io.BytesIO(b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n9,3,12,3\n8,2,10,9\n"))
    assert (found.format, found.span_s, found.rate_rps, found.replay_s) == ("vidur", None, None, None)
    assert (found.same_instant_groups, found.prompt_tokens, found.output_tokens) == (0, 17, 5)
    assert "lengths but no arrival times" in found.rules[0]


def test_a_made_up_burstgpt_is_warned_of() -> None:
    head, row = BURST_6.splitlines()[0], b"ChatGPT,4,5,9,Conversation log"
    made_up = b"\n".join([head, *(b"%d,%s" % (second, row) for second in range(5))])
    assert "made-up copy" in inspect(io.BytesIO(made_up)).warnings[0]
    assert inspect(io.BytesIO(BURST_6)).warnings == []


def test_block_ids_that_cover_little_are_warned_of() -> None:
    """14 ids of 16 tokens over 6,755: right for 512-token blocks only."""
    row = json.loads(ALL["mooncake"].splitlines()[0])
    names = {
        "arrival": "timestamp",
        "prompt_tokens": "input_length",
        "output_tokens": "output_length",
        "prefix_blocks": "hash_ids",
    }
    content = json.dumps(row).encode()
    options: dict[str, Any] = {"format": "jsonl", "columns": names, "time_unit": "ms"}
    assert inspect(io.BytesIO(content), block_size=512, **options).warnings == []
    assert "cover 3.3% of the prompt tokens" in inspect(io.BytesIO(content), block_size=16, **options).warnings[0]


def test_digest_is_of_the_rows_not_of_the_bytes(mooncake_bytes: bytes) -> None:
    reformatted = "\n".join(json.dumps(json.loads(line), separators=(",", ":")) for line in mooncake_bytes.splitlines())
    one, two = inspect(io.BytesIO(mooncake_bytes)), inspect(io.BytesIO(reformatted.encode()))
    assert one.digest == two.digest == "96b287a80858915c22d3e18a9cab3f9c"
    assert one.sha256 != two.sha256
    assert inspect(io.BytesIO(mooncake_bytes.replace(b"1024", b"1023"))).digest != one.digest


@pytest.mark.parametrize(
    ("times", "groups", "rows", "spreading"),
    [
        ([0, 0, 0, 9], 1, 3, [0, 3, 6, 9]),
        ([0, 4, 4], 1, 2, [0, 4, 6]),
        ([0, 0, 5, 7, 7], 2, 4, [0, 2, 5, 7, 8]),
        ([0, 1, 2], 0, 0, [0, 1, 2]),
        ([0, 0], 1, 2, [0, 0]),
        ([0], 0, 0, [0]),
    ],
)
def test_same_instants_by_hand(times: list[int], groups: int, rows: int, spreading: list[int]) -> None:
    assert same_instants(times) == (groups, rows)
    assert list(spread(array("q", times))) == spreading


# --- the public traces ----------------------------------------------------------------------------------------------

FACTS: dict[str, Mapping[str, object]] = {
    "azure2023/code_rows_0001-4000.csv": {
        "format": "azure-2023",
        "rows": 4000,
        "span_s": 1365.357816,
        "prompt_tokens": 8171220,
        "prompt_tokens_max": 7437,
        "output_tokens": 109683,
        "output_tokens_max": 1899,
        "output_tokens_min": 6,
        "one_token_outputs": 0,
        "same_instant_groups": 0,
    },
    "azure2023/conv_rows_00001-08000.csv": {
        "format": "azure-2023",
        "rows": 8000,
        "span_s": 1517.057844,
        "prompt_tokens": 9564756,
        "prompt_tokens_max": 14050,
        "output_tokens": 1897305,
        "output_tokens_max": 1000,
        "one_token_outputs": 0,
        "same_instant_groups": 0,
    },
    "azure2024/code_head5_tail5.csv": {
        "format": "azure-2024",
        "rows": 10,
        "span_s": 604799.919571,
        "prompt_tokens": 24016,
        "output_tokens": 180,
        "one_token_outputs": 3,
    },
    "burstgpt/burstgpt_1_rows_001-400.csv": {
        "format": "burstgpt",
        "rows": 400,
        "usable_rows": 383,
        "rejected_rows": 17,
        "zero_output_rows": 17,
        "span_s": 37269.0,
        "prompt_tokens": 208189,
        "output_tokens": 110612,
        "output_tokens_max": 2019,
        "same_instant_groups": 4,
    },
    "mooncake/arxiv_first16.jsonl": {
        "format": "mooncake",
        "rows": 16,
        "span_s": 3.052,
        "prompt_tokens": 154607,
        "output_tokens": 4347,
        "blocks": 313,
        "prefix_hit_blocks": 50,
    },
    "mooncake/conversation_lines_00001-03000.jsonl": {
        "format": "mooncake",
        "rows": 3000,
        "span_s": 987.0,
        "prompt_tokens": 40550180,
        "prompt_tokens_max": 123192,
        "output_tokens": 1048832,
        "one_token_outputs": 21,
        "blocks": 80619,
        "prefix_hit_blocks": 25332,
    },
    "mooncake/synthetic_lines_0001-1000.jsonl": {
        "format": "mooncake",
        "rows": 1000,
        "span_s": 272.653,
        "prompt_tokens": 11851558,
        "output_tokens": 196039,
        "one_token_outputs": 1,
        "blocks": 23787,
        "prefix_hit_blocks": 4007,
    },
    "vidur_format/splitwise_conv_rows_0001-2000.csv": {
        "format": "vidur",
        "rows": 2000,
        "prompt_tokens": 2209565,
        "output_tokens": 529807,
        "output_tokens_min": 12,
    },
    "vidur_format/arxiv_summarization_lengths_rows_5001-7000.csv": {
        "format": "vidur",
        "rows": 2000,
        "span_s": None,
        "prompt_tokens": 5150301,
        "output_tokens": 592857,
    },
    "sharegpt_lengths/val10k_llama2_rows_0001-5000.csv": {
        "format": "vidur",
        "rows": 5000,
        "prompt_tokens": 1263463,
        "output_tokens": 1630918,
        "output_tokens_min": 3,
    },
    "splitwise_sim/test_trace.csv": {"format": "splitwise", "rows": 3},
}


@pytest.mark.traces
@pytest.mark.parametrize("path", FACTS)
def test_facts_of_the_public_traces(path: str, traces: Path) -> None:
    found = inspect(traces / path).canonical()
    assert {key: found[key] for key in FACTS[path]} == FACTS[path]


@pytest.mark.traces
def test_plain_files_among_the_public_traces(traces: Path) -> None:
    names = {"arrival": "arrival_time_ns", "prompt_tokens": "input_toks", "output_tokens": "output_toks"}
    path = traces / "llmservingsim/sharegpt_llama31_300_lengths.jsonl"
    found = inspect(path, format="jsonl", columns=names, time_unit="ns")
    assert (found.rows, found.prompt_tokens, found.output_tokens) == (300, 257239, 195753)
    assert found.span_s == pytest.approx(29.183763 - 0.046927, abs=1e-6)


@pytest.mark.traces
def test_unsorted_client_records_are_sorted_and_said(traces: Path) -> None:
    """Grouped by user, counts written as 76.0: 199 rows come before the row above them."""
    names = {"arrival": "launch_time", "prompt_tokens": "prompt_tokens", "output_tokens": "generation_tokens"}
    path = traces / "llmd_measured/exp2_llmd/short_input_qps5.csv"
    found = inspect(path, format="csv", columns=names, time_unit="s")
    assert (found.rows, found.out_of_order_rows) == (526, 199)
    assert any("sorted by time" in rule for rule in found.rules)


@pytest.mark.traces
def test_a_trace_declared_as_its_namesake_is_refused(traces: Path) -> None:
    with pytest.raises(InputError, match="looks like mooncake"):
        inspect(traces / "mooncake/conversation_lines_00001-03000.jsonl", format="qwen-bailian")
