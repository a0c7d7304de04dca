"""Verdicts on files of other tools: the tool is found out, the rules are those of experiments."""

from pathlib import Path

import pytest

from scheduler_core.evidence.imported.detect import detect_tool
from scheduler_core.evidence.imported.readers import READERS, read_measured
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.elsewhere import Judged, MeasuredSpec, judge_measured
from tests.evidence.imported.test_imported import FILES
from tests.verdict.measured_files import bench_file, two_arms


def judge(folder: Path, arms: dict[str, list[Path]], **asked: object) -> Judged:
    names = {arm: [path.name for path in files] for arm, files in arms.items()}
    return judge_measured(parse(MeasuredSpec, {"arms": names, **asked}), folder)


@pytest.mark.parametrize("tool", READERS)
def test_each_tool_is_known_by_its_file(tool: str, tmp_path: Path) -> None:
    """SGLang's benchmark writes vLLM's layout, and is read by the same reader."""
    path = tmp_path / "file"
    path.write_text(FILES[tool])
    assert READERS[detect_tool(path)] is READERS[tool]


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "[]", "[1]", "{}", "null", "{" * 5000, '{"metrics": 1}'])
def test_a_file_of_no_tool_is_refused_with_the_known_ones(content: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(InputError, match=r"is of no known tool \(llm-d, .*inference-perf\)"):
        detect_tool(path)


@pytest.mark.parametrize("tool", READERS)
@pytest.mark.parametrize(
    "content",
    ["", "[]", "[[]]", "nonsense", '{"benchmarks": [1]}', '{"metadata": {"request_start_ns": 1}, "metrics": [1]}',
     '{"input_lens": [null], "output_lens": [1], "ttfts": [1], "itls": [[]]}', '{"individual_request_metrics": [1]}',
     '[{"start_time": 1, "info": {"output_token_times": ["x"]}}]', "[" * 5000],
)  # fmt: skip
def test_whatever_a_reader_trips_over_is_the_files_fault(tool: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(InputError, match=str(path)):
        read_measured(path, tool)


def test_a_shorter_ttft_is_accepted_and_an_equal_one_is_no_gain(tmp_path: Path) -> None:
    """Five pairs: 40 % less against a 10 % margin; the same again is a reject for want of a gain."""
    faster = judge(tmp_path, two_arms(tmp_path, factor=0.6))
    found = faster.verdict.comparisons[0]
    assert (found.decision, faster.verdict.exit_code, found.pairs) == ("accept", 0, 5)
    assert found.gates[0].change == pytest.approx(-0.4, abs=0.03)
    assert {run.level for run in faster.runs} == {"imported"}
    assert "baseline: read as bench-serving" in faster.notes
    assert any("120 requests finished in both runs" in note for note in faster.notes)
    assert judge(tmp_path, two_arms(tmp_path, factor=1.0)).verdict.comparisons[0].decision in ("reject", "tune")


def test_the_goal_and_the_baseline_are_those_asked_for(tmp_path: Path) -> None:
    arms = two_arms(tmp_path, factor=0.6)
    asked = judge(tmp_path, arms, baseline="candidate", goal={"primary": "e2e_p95_ms", "better_by": "20%"})
    found = asked.verdict.comparisons[0]
    assert (found.baseline, found.candidate, found.decision) == ("candidate", "baseline", "reject")
    assert found.gates[0].metric == "e2e_p95_ms"


def test_an_arm_that_drops_requests_never_wins(tmp_path: Path) -> None:
    arms = two_arms(tmp_path, factor=1.0)
    for repeat, path in enumerate(arms["candidate"]):
        bench_file(path, ttft_s=0.1, seed=repeat, failed=30)
    found = judge(tmp_path, arms).verdict.comparisons[0]
    assert found.decision == "reject"
    assert "completion falls from 100.0 % to 75.0 %" in found.headline


def test_files_of_different_loads_are_not_comparable(tmp_path: Path) -> None:
    arms = two_arms(tmp_path, factor=0.6)
    bench_file(arms["candidate"][0], ttft_s=0.1, seed=0, rate_rps=2)
    judged = judge(tmp_path, arms).verdict
    found = "R1: repeat 0: the loads differ: requests were sent at 10 and 2 requests/s"
    assert (judged.comparisons[0].obstacles, judged.exit_code) == ([found], 30)


def test_one_file_each_is_too_little_and_unpaired_repeats_are_said(tmp_path: Path) -> None:
    arms = two_arms(tmp_path, factor=0.6, repeats=2)
    judged = judge(tmp_path, {"baseline": arms["baseline"], "candidate": arms["candidate"][:1]})
    assert judged.verdict.comparisons[0].decision == "tune"
    assert "numbers of files differ (baseline 2, candidate 1)" in " ".join(judged.notes)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"arms": {"a": ["x"]}}, "arms"),
        ({"arms": {"a": ["x"], "b": []}}, "b has no file"),
        ({"arms": {"a": ["x"], "b": ["y"]}, "baseline": "c"}, "there is no arm 'c'"),
        ({"arms": {"a": ["x"], "<b>": ["y"]}}, "usable name"),
        ({"arms": {"a": ["x"], "b": ["y"]}, "tool": "wrk"}, "'wrk' is not one of llm-d"),
        ({"arms": {"a": ["x"], "b": ["y"]}}, "cannot be read"),
    ],
)
def test_a_wrong_question_is_refused(asked: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        judge_measured(parse(MeasuredSpec, asked), tmp_path)
