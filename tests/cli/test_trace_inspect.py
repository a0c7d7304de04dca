"""``headway trace inspect``: its keys, its exit status, and known facts of public traces."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Headway

KEYS = {
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
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
5,ChatGPT,1087,230,1317,Conversation log
45,GPT-4,0,0,0,Conversation log
118,GPT-4,417,276,693,Conversation log
"""


def test_the_findings_of_a_small_file_by_hand(headway: Headway, tmp_path: Path) -> None:
    """Four rows, one a failed call (line 4): three play, over 118 - 5 = 113 s, so 2 / 113 per second."""
    path = tmp_path / "burst.csv"
    path.write_text(BURST)
    ran = headway("trace", "inspect", path, "--json")
    found = json.loads(ran.out)
    assert ran.status == 0
    assert set(found) >= KEYS
    assert (found["format"], found["rows"], found["zero_output_rows"]) == ("burstgpt", 4, 1)
    assert [row["line"] for row in found["rejected"]] == [4]
    assert found["span_s"] == 113
    assert found["rate_rps"] == pytest.approx(2 / 113)
    assert (found["prompt_tokens"], found["output_tokens"]) == (472 + 1087 + 417, 18 + 230 + 276)
    assert found["same_instant_groups"] == 1


def test_columns_and_unit_of_a_plain_file_are_given(headway: Headway, tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("t,in,out\n1000,10,2\n3500,20,3\n")
    mapping = "arrival=t,prompt_tokens=in,output_tokens=out"
    ran = headway("trace", "inspect", path, "--format", "csv", "--columns", mapping, "--time-unit", "ms", "--json")
    assert ran.status == 0
    assert json.loads(ran.out)["span_s"] == 2.5


def test_a_refused_file_is_status_2_with_its_line(headway: Headway, tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(BURST + "not,a,row,at,all\n")
    ran = headway("trace", "inspect", path, "--json")
    assert ran.status == 2
    assert "line 6" in json.loads(ran.out)["error"]
    plain = headway("trace", "inspect", path)
    assert (plain.status, plain.out) == (2, "")
    assert "refused" in plain.err


@pytest.mark.parametrize(
    "arguments", [["--format", "parquet"], ["--columns", "nonsense"], ["--time-unit", "fortnight"]]
)
def test_a_wrong_option_is_status_2_without_a_traceback(headway: Headway, tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(BURST)
    assert headway("trace", "inspect", path, *arguments).status == 2


def test_a_missing_file_is_status_2(headway: Headway, tmp_path: Path) -> None:
    assert headway("trace", "inspect", tmp_path / "none.csv").status == 2


FACTS: list[tuple[str, dict[str, Any]]] = [
    (
        "azure2023/conv_rows_00001-08000.csv",
        {"format": "azure-2023", "rows": 8000, "prompt_tokens": 9564756, "output_tokens": 1897305, "span_s": 1517.0578},
    ),
    (
        "azure2024/code_head5_tail5.csv",
        {"format": "azure-2024", "rows": 10, "prompt_tokens": 24016, "output_tokens": 180, "span_s": 604799.9196},
    ),
    (
        "mooncake/conversation_lines_00001-03000.jsonl",
        {"format": "mooncake", "rows": 3000, "prompt_tokens": 40550180, "output_tokens": 1048832, "span_s": 987.0},
    ),
    (
        "burstgpt/burstgpt_1_rows_001-400.csv",
        {"format": "burstgpt", "rows": 400, "prompt_tokens": 208189, "output_tokens": 110612, "zero_output_rows": 17},
    ),
    (
        "vidur_format/splitwise_conv_rows_0001-2000.csv",
        {"format": "vidur", "rows": 2000, "prompt_tokens": 2209565, "output_tokens": 529807},
    ),
    ("splitwise_sim/test_trace.csv", {"format": "splitwise", "rows": 3}),
]


@pytest.mark.traces
@pytest.mark.parametrize(("name", "facts"), FACTS, ids=[name.partition("/")[0] for name, _ in FACTS])
def test_facts_of_public_traces(headway: Headway, name: str, facts: dict[str, Any]) -> None:
    folder = os.environ.get("HEADWAY_TRACES")
    if not folder:
        pytest.skip("HEADWAY_TRACES names no folder of public traces")
    ran = headway("trace", "inspect", Path(folder) / name, "--json")
    assert ran.status == 0
    found = json.loads(ran.out)
    for key, value in facts.items():
        assert found[key] == (pytest.approx(value, abs=1e-3) if isinstance(value, float) else value), key
