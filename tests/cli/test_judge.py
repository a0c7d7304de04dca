"""``headway judge``: other tools' files in, the verdict's text, files and exit status out."""

import json
from pathlib import Path

from scheduler_core.evidence.formulas.tools import FORMULAS
from scheduler_core.evidence.metrics.registry import METRICS
from tests.cli.conftest import Headway
from tests.verdict.measured_files import two_arms


def _arguments(folder: Path, factor: float) -> list[str]:
    return [f"{arm}={path}" for arm, files in two_arms(folder, factor=factor).items() for path in files]


def test_files_are_judged_and_the_status_is_the_verdicts(headway: Headway, tmp_path: Path) -> None:
    ran = headway("judge", *_arguments(tmp_path, 0.6))
    assert ran.status == 0, ran.err
    assert ran.out.startswith("accept   candidate against baseline, 5 x 120 requests each")
    assert "candidate: read as bench-serving" in ran.err
    slower = headway("judge", *_arguments(tmp_path, 1.5), "--json")
    assert slower.status == 20
    assert json.loads(slower.out)["verdict"]["exit_code"] == 20


def test_a_goal_file_and_reports(headway: Headway, tmp_path: Path) -> None:
    goal = tmp_path / "goal.yaml"
    goal.write_text("goal: {primary: e2e_p95_ms, better_by: 5%}\n")
    page, suite = tmp_path / "page.html", tmp_path / "suite.xml"
    ran = headway("judge", *_arguments(tmp_path, 0.6), "--goal", goal, "--write", page, "--write", suite, "--pr")
    assert ran.status == 0, ran.err
    assert "| e2e_p95_ms |" in ran.out
    assert "<svg" in page.read_text()
    assert 'name="primary e2e_p95_ms"' in suite.read_text()


def test_wrong_input_is_one_clear_line(headway: Headway, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"ttfts": [1]}')
    good = _arguments(tmp_path, 1.0)[0]
    assert "write ARM=FILE" in headway("judge", "file.json", good).err
    ran = headway("judge", good, f"other={bad}")
    assert ran.status == 1
    assert f"{bad}: is of no known tool" in ran.err
    assert "'nope' is not one of" in headway("judge", good, f"other={bad}", "--tool", "nope").err


def test_figures_by_the_formulas_of_another_tool(headway: Headway, tmp_path: Path) -> None:
    ran = headway("judge", *_arguments(tmp_path, 0.6), "--formulas", "guidellm")
    assert ran.status == 0, ran.err
    assert "candidate: guidellm" in ran.out
    assert "tpot (time_per_output_token_ms): (last token - real send) / tokens, weighted by tokens" in ran.out
    assert f"    Headway's: {METRICS['tpot_mean_ms'].formula}\n" in ran.out
    assert "differs from Headway's: the wait for the first token is inside" in ran.out
    refused = headway("judge", *_arguments(tmp_path, 0.6), "--formulas", "tgi")
    assert refused.status == 1 and "'tgi' is not one of guidellm" in refused.err


def test_the_help_names_every_tool_whose_formulas_are_known(headway: Headway) -> None:
    told = headway("judge", "--help").out
    assert all(tool in "".join(told.split()) for tool in FORMULAS)
