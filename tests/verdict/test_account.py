"""Planned = sent + not sent, sent = finished + failed + cancelled + open at the end: on every report and export."""

import html
import json
from pathlib import Path

import pytest

from scheduler_core.evidence.account import account
from scheduler_core.evidence.benchmark import benchmark
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.evidence.tables.tables import read_table
from scheduler_core.types.client_records import Sent, Streamed
from scheduler_core.types.records import Record
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.report.junit import junit
from scheduler_core.verdict.report.page import experiment_page, run_page
from scheduler_core.verdict.report.pull_request import pull_request
from scheduler_core.verdict.text import render
from tests.evidence.formulas.test_formulas import client_run, run_of
from tests.evidence.played import summarise
from tests.evidence.scenes import Scene
from tests.verdict.arms import arms, experiment
from tests.verdict.test_failing_runs import run as failing

MIXED = (
    "10 planned = 9 sent + 1 not sent; 9 sent = 4 finished + 2 failed + 1 rejected + 1 cancelled + 1 open at the end"
)


def mixed() -> list[Record]:
    """Ten planned: four finish, two fail, one is rejected, one cancelled, one is still open, one never came up."""
    scene = Scene(10)
    ends = ["finished"] * 4 + ["failed"] * 2 + ["rejected", "cancelled"]
    for request in range(9):
        scene.arrive(request, 10 * request)
        if request != 6:
            scene.admit(request, 10 * request)
            scene.step(10 * request, 10 * request + 10, [(request, 10)])
        if request < 8:
            scene.finish(request, 10 * request + 10, ends[request])
    return scene.end(100, complete=False)


def test_every_report_of_a_run_tells_the_account(tmp_path: Path) -> None:
    run = summarise(mixed(), tmp_path)
    assert (sum(run.outcomes.values()), run.unsent) == (10, {"cut_off": 1})
    assert account(run.offered, run.outcomes, run.unsent).sentence() == MIXED
    assert MIXED in run_page(run)
    assert benchmark(run, role="baseline")["quality"]["account"] == MIXED
    assert json.loads((tmp_path / "benchmark.json").read_text())["quality"]["account"] == MIXED
    assert read_table(tmp_path / "requests.parquet").num_rows == 9
    assert run.audit.checks["offered = outcomes"] and run.audit.passed


def test_a_client_that_was_stopped_tells_what_it_never_sent(tmp_path: Path) -> None:
    """Three due, two sent of which one finished; the third was given up before it left."""
    answers = client_run([(0, [(100, 1)], 100), (0, [], 120), (0, [], 130)])
    kept = [record for record in answers if not (isinstance(record, Sent) and record.request == 2)]
    assert any(isinstance(record, Streamed) for record in kept)
    run = run_of(kept, tmp_path)
    counted = account(run.offered, run.outcomes, run.unsent)
    assert counted.sentence() == "3 planned = 2 sent + 1 not sent; 2 sent = 1 finished + 1 failed"


def _partly(run: RunSummary) -> RunSummary:
    return run.model_copy(update={"outcomes": {"finished": 50, "cut_off": 10}, "unsent": {"cut_off": 4}, "reasons": {}})


def test_every_form_of_a_verdict_tells_the_account_of_both_arms() -> None:
    """Five runs of 60 an arm; in the candidate's 4 were never sent and 6 were open."""
    runs = [_partly(run) if run.arm == "candidate" else run for run in arms((0.7, 0.71, 0.69, 0.7, 0.7))]
    verdict = decide(experiment(), runs)
    told = (
        "baseline: 300 planned = 300 sent + 0 not sent; 300 sent = 300 finished",
        "candidate: 300 planned = 280 sent + 20 not sent; 280 sent = 250 finished + 30 open at the end",
    )
    for form in (render(verdict), pull_request(verdict), junit(verdict), experiment_page(verdict, runs)):
        assert all(sentence in html.unescape(form) for sentence in told)
    assert "60 planned = 56 sent + 4 not sent; 56 sent = 50 finished + 6 open at the end" in experiment_page(
        verdict, runs
    )


@pytest.mark.parametrize("side", ["candidate", "both"])
def test_when_every_request_fails_each_report_has_reasons_and_no_empty_chart(side: str, tmp_path: Path) -> None:
    """Thirty of thirty fail: rejected with the reason, or no reference; a chart without values is a sentence."""
    runs = [
        failing(tmp_path, arm, repeat, fails=side == "both" or arm == "candidate")
        for repeat in range(5)
        for arm in ("baseline", "candidate")
    ]
    verdict = decide(experiment(), runs)
    page = experiment_page(verdict, runs)
    for form in (render(verdict), pull_request(verdict), junit(verdict), page):
        assert ("(150 failed: decode: length)" if side == "candidate" else "30 failed: decode: length") in form
    assert "30 planned = 30 sent + 0 not sent; 30 sent = 0 finished + 30 failed" in page
    assert "failed: decode: length" in run_page(runs[1])
    for drawn in page.split("<svg")[1:]:
        assert "<rect" in drawn or "<circle" in drawn or "<path" in drawn or "<line" in drawn
    assert "nan" not in page.lower().replace("tenant", "")
