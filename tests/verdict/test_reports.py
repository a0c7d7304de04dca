"""Reports say what the verdict says, in any medium, and open offline."""

import html
from pathlib import Path
from xml.etree import ElementTree as ET

from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.report.junit import junit
from scheduler_core.verdict.report.page import experiment_page, run_page
from scheduler_core.verdict.report.pull_request import pull_request
from scheduler_core.verdict.report.questions import answers
from scheduler_core.verdict.text import render
from tests.evidence.played import play, summarise
from tests.verdict.arms import arms, experiment

WIN = (0.70, 0.71, 0.69, 0.70, 0.70)


def test_every_medium_carries_decision_gates_and_reasons() -> None:
    verdict = decide(experiment(), arms(WIN, changed={"tpot_p95_censored_ms": 11.0}))
    comparison = verdict.comparisons[0]
    page = experiment_page(verdict, arms(WIN))
    for text in (render(verdict), pull_request(verdict), html.unescape(page), html.unescape(junit(verdict))):
        assert "reject" in text
        assert "tpot_p95_ms" in text
        assert comparison.headline in text
    for text in (render(verdict), pull_request(verdict), html.unescape(page)):
        assert all(condition in text for condition in comparison.conditions)
        assert all(reason in text for reason in comparison.why)
        assert "+10 %" in text


def test_junit_counts_gates_by_state() -> None:
    suite = ET.fromstring(junit(decide(experiment(), arms(WIN, changed={"goodput_rps": 4.5}))))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped"), suite.get("errors")) == (
        "4",
        "2",
        "0",
        "0",
    )
    other = [run.model_copy(update={"plan_digest": run.arm}) for run in arms(WIN)]
    suite = ET.fromstring(junit(decide(experiment(), other)))[0]
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")


def test_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    summary = summarise(play({"policy": "vllm_v1"}), tmp_path)
    pages = [run_page(summary), experiment_page(decide(experiment(), arms(WIN)), arms(WIN))]
    for page in pages:
        assert not any(word in page for word in ("http://", "https://", "<script", "src=", "@import", "url("))
    assert "longest_gap_p95_ms" in pages[0]
    assert pages[0].count("<svg") == 4 and "120 requests" in pages[0]  # outcomes, latency, parts, causes
    for question, answer, fields in answers(summary):
        assert html.escape(question) in pages[0]
        assert answer and fields
    assert answers(summary)[3][1] == "no request moved between instances"
    assert "<svg" in pages[1]


def test_hostile_names_are_escaped() -> None:
    verdict = decide(experiment(), arms(WIN)).model_copy(update={"experiment": "<script>alert(1)</script>"})
    assert "<script" not in experiment_page(verdict, [])
    assert "&lt;script&gt;" in junit(verdict)
