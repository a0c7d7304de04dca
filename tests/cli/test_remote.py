"""Commands against a live server: what they send, what they print, and with which status they end."""

import io
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache

from controlplane.accounts.models import User
from controlplane.accounts.services import create_token
from controlplane.evidence.models import Artifact
from controlplane.experiments.models import Experiment
from controlplane.runs.models import Run
from controlplane.workloads.models import Dataset
from headway.follow import View
from scheduler_core.verdict.schema import Comparison, Decision, NextStep, Verdict
from tests.cli.conftest import EXPERIMENT, Headway

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _server(live_server: Any, settings: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A server, a person with a token, and both in the environment as a user would have them."""
    cache.clear()
    settings.MEDIA_ROOT = tmp_path / "storage"
    olga = User.objects.create_user("olga")
    monkeypatch.setenv("HEADWAY_URL", live_server.url)
    monkeypatch.setenv("HEADWAY_TOKEN", create_token(user=olga, name="cli").secret)
    monkeypatch.setattr("headway.follow.POLL_S", 0.01)


def _verdict(code: int) -> dict[str, Any]:
    decision = {0: Decision.ACCEPT, 10: Decision.TUNE, 20: Decision.REJECT, 30: None}[code]
    comparison = Comparison(
        baseline="baseline",
        candidate="chunked",
        comparable=decision is not None,
        obstacles=[],
        decision=decision,
        headline="as the runs showed",
        pairs=2,
        requests_per_run=40,
        plan_digest="0" * 32,
        gates=[],
        effects=[],
        why=[],
        conditions=[],
        next_steps=[NextStep(title="more", because="few pairs", experiment={**EXPERIMENT, "name": "more"})],
        exit_code=code,
    )
    verdict = Verdict(experiment="small", comparisons=[comparison], identical_outputs="none", exit_code=code)
    return verdict.canonical()


def _decide(code: int | None) -> None:
    """End every experiment as if its runs had: with a verdict, or failed without one."""
    Run.objects.update(state="succeeded" if code is not None else "failed", reason="")
    if code is None:
        Experiment.objects.update(status="failed", reason="no run succeeded")
    else:
        Experiment.objects.update(status="decided", verdict=_verdict(code))


def test_login_tries_the_token_and_keeps_it_privately(
    headway: Headway, live_server: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    secret = create_token(user=User.objects.get(), name="laptop", read_only=True).secret
    monkeypatch.delenv("HEADWAY_URL")
    monkeypatch.delenv("HEADWAY_TOKEN")
    refused = headway("login", live_server.url, "--token", "hw_0000000000_wrong")
    assert refused.status == 1
    assert "unknown, expired or revoked" in refused.err
    ran = headway("login", live_server.url + "/", "--token", secret)
    assert ran.status == 0
    assert "may only look" in ran.err
    kept = tmp_path / "config" / "headway" / "config.toml"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert headway("list").status == 0


def test_login_takes_the_token_from_a_pipe(headway: Headway, monkeypatch: Any, live_server: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{os.environ['HEADWAY_TOKEN']}\n"))
    done = headway("login", live_server.url)
    assert (done.status, done.err.count("\n")) == (0, 1)
    assert done.err.startswith("olga at")


def test_submit_prints_the_id_and_sends_each_file_once(headway: Headway, written: Callable[..., Path]) -> None:
    ran = headway("submit", written(target={"torch": {"device": "cpu"}}), "--key", "k1")
    again = headway("submit", written(target={"torch": {"device": "cpu"}}), "--key", "k1")
    assert ran.status == again.status == 0
    assert ran.out == again.out == Experiment.objects.get().pk + "\n"
    assert headway("submit", written(target={"torch": {"device": "cpu"}})).out != ran.out


def test_submit_imports_a_trace_file_first(headway: Headway, written: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("t,in,out\n" + "".join(f"{n * 100},{9 + n},3\n" for n in range(30)))
    columns = {"arrival": "t", "prompt_tokens": "in", "output_tokens": "out"}
    trace = {"file": "mine.csv", "format": "csv", "columns": columns, "time_unit": "ms", "rows": "1-20", "rate_rps": 5}
    ran = headway("submit", written(workload={"trace": trace}, target={"torch": {"device": "cpu"}}), "--json")
    assert ran.status == 0, ran.err
    dataset = Dataset.objects.get()
    sent = json.loads(ran.out)["spec"]["workload"]["trace"]
    assert (sent["dataset"], sent["file"], sent["rows"], sent["rate_rps"]) == (dataset.pk, None, "1-20", 5)
    assert dataset.inspection["span_s"] == 2.9
    assert f"trace imported as {dataset.pk}: 30 rows" in ran.err


def test_problems_of_a_file_are_told_one_a_line(headway: Headway, written: Callable[..., Path]) -> None:
    ran = headway("submit", written(repeets=2, arms={"a": {"policy": "static", "batch": {"size": 0}}}))
    assert ran.status == 1
    assert "repeets: unknown key; did you mean 'repeats'?" in ran.err
    assert "arms.a.batch.size" in ran.err
    assert ran.out == ""


def test_check_submits_nothing(headway: Headway, written: Callable[..., Path]) -> None:
    ran = headway("check", written(target={"torch": {"device": "cpu"}}))
    assert (ran.status, Experiment.objects.count()) == (0, 0)
    assert "good: 4 runs of 40 requests" in ran.out


@pytest.mark.parametrize("code", [0, 10, 20, 30])
def test_waiting_ends_with_the_verdicts_status(
    headway: Headway, written: Callable[..., Path], monkeypatch: Any, code: int
) -> None:
    def end_it(_: Any, view: View) -> None:
        if not view.ended:
            _decide(code)

    monkeypatch.setattr("headway.cli.board.Board.show", end_it)
    ran = headway("submit", written(target={"torch": {"device": "cpu"}}), "--wait")
    assert ran.status == code
    assert "chunked against baseline" in ran.out


def test_an_experiment_without_verdict_is_an_error(headway: Headway, written: Callable[..., Path]) -> None:
    identifier = headway("submit", written(target={"torch": {"device": "cpu"}})).out.strip()
    _decide(None)
    ran = headway("watch", identifier)
    assert ran.status == 1
    assert "no run succeeded" in ran.err


def test_ctrl_c_detaches_and_says_how_to_come_back(
    headway: Headway, written: Callable[..., Path], monkeypatch: Any
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.cli.board.Board.show", interrupt)
    ran = headway("submit", written(target={"torch": {"device": "cpu"}}), "--wait")
    experiment = Experiment.objects.get()
    assert ran.status == 130
    assert f"headway watch {experiment.pk}" in ran.err
    assert not Run.objects.filter(cancel_requested_at__isnull=False).exists()


def test_list_show_and_next(headway: Headway, written: Callable[..., Path]) -> None:
    identifier = headway("submit", written(name="[red]x", target={"torch": {"device": "cpu"}})).err
    assert "usable name" in identifier
    identifier = headway("submit", written(target={"torch": {"device": "cpu"}})).out.strip()
    assert identifier in headway("list").out
    assert json.loads(headway("list", "--json", "--status", "decided").out) == []
    assert "baseline" in headway("show", identifier).out
    assert headway("next", identifier).status == 1
    _decide(10)
    assert "chunked against baseline" in headway("show", identifier).out
    ran = headway("next", identifier)
    assert "name: more" in ran.out
    assert "few pairs" in ran.err


def test_cancel_and_retry(headway: Headway, written: Callable[..., Path]) -> None:
    identifier = headway("submit", written(target={"torch": {"device": "cpu"}})).out.strip()
    assert headway("cancel", identifier).out == f"{identifier}: cancelled\n"
    refused = headway("cancel", identifier)
    assert refused.status == 1
    assert "already ended" in refused.err
    run = Run.objects.order_by("place")[0]
    assert headway("retry", run.pk).out == f"{run.pk}: queued\n"


def test_what_is_not_there_is_named(headway: Headway) -> None:
    shown = headway("show", "exp_nowhere")
    assert (shown.status, shown.err.count("\n")) == (1, 1)
    assert "/experiments/exp_nowhere" in shown.err
    retried = headway("retry", "exp_nowhere")
    assert retried.status == 2
    assert "'exp_nowhere' is no run; give one such as run_7k2m..." in retried.err


def test_export_brings_every_file_checked_or_nothing(
    headway: Headway, written: Callable[..., Path], tmp_path: Path
) -> None:
    import hashlib

    from django.core.files.base import ContentFile
    from django.core.files.storage import default_storage

    identifier = headway("submit", written(target={"torch": {"device": "cpu"}})).out.strip()
    run = Run.objects.order_by("place")[0]
    name = default_storage.save("a/summary.json", ContentFile(b'{"x": 1}'))
    good = hashlib.sha256(b'{"x": 1}').hexdigest()
    row = Artifact.objects.create(run=run, attempt=1, name="summary.json", file=name, bytes=8, sha256="0" * 64)
    target = tmp_path / "out"
    damaged = headway("export", identifier, "--to", target)
    assert damaged.status == 1
    assert "checksum" in damaged.err
    assert not target.exists()
    Artifact.objects.filter(pk=row.pk).update(sha256=good)
    ran = headway("export", identifier, "--to", target)
    assert ran.status == 0, ran.err
    assert json.loads((target / "experiment.json").read_text())["id"] == identifier
    (summary,) = target.glob("001-*-1/attempt-1-summary.json")  # which arm goes first is drawn
    assert summary.read_bytes() == b'{"x": 1}'
    assert headway("export", identifier, "--to", target).status == 1


def test_a_verdict_goes_to_build_servers_and_pull_requests(
    headway: Headway, written: Callable[..., Path], tmp_path: Path
) -> None:
    identifier = headway("submit", written(target={"torch": {"device": "cpu"}})).out.strip()
    early = headway("show", identifier, "--junit", tmp_path / "early.xml")
    assert (early.status, list(tmp_path.glob("early*"))) == (1, [])
    assert "no verdict to export" in early.err
    _decide(20)
    ran = headway("show", identifier, "--pr", "--junit", tmp_path / "verdict.xml")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("## small\n") and "**reject**" in ran.out
    assert 'failures="1"' in (tmp_path / "verdict.xml").read_text()


@pytest.mark.parametrize("what", [("run_nowhere",), ("exp_nowhere", "--formulas", "guidellm")])
def test_figures_have_no_junit_and_no_pull_request(headway: Headway, what: tuple[str, ...], tmp_path: Path) -> None:
    for form in (("--junit", tmp_path / "verdict.xml"), ("--pr",)):
        refused = headway("show", *what, *form)
        assert refused.status == 2
        assert "they tell the verdict of an experiment" in refused.err


def test_a_calibration_has_no_account_of_requests(headway: Headway, written: Callable[..., Path]) -> None:
    headway("submit", written(target={"torch": {"device": "cpu"}}))
    run = Run.objects.order_by("place")[0]
    Run.objects.filter(pk=run.pk).update(kind="calibration", summary={"profile": "mine"})
    shown = headway("show", run.pk)
    assert (shown.status, "planned" in shown.out) == (0, False)


def test_one_report_or_the_whole_folder_with_reports(
    headway: Headway, written: Callable[..., Path], tmp_path: Path
) -> None:
    identifier = headway("submit", written(target={"torch": {"device": "cpu"}})).out.strip()
    _decide(0)
    page = tmp_path / "page.html"
    assert headway("export", identifier, "--only", "report.html", "--to", page).out == f"{page}\n"
    assert "as the runs showed" in page.read_text()
    run = Run.objects.order_by("place")[0]
    none = headway("export", run.pk, "--only", "timeline.json", "--to", tmp_path / "t.json")
    assert none.status == 1
    assert "has no records in attempt" in none.err
    assert headway("export", identifier, "--only", "nonsense").status == 1
    assert "--only" in headway("export", run.pk).err
    ran = headway("export", identifier, "--to", tmp_path / "all")
    assert ran.status == 0, ran.err
    assert {path.name for path in (tmp_path / "all").glob("*.*")} == {
        "experiment.json", "report.html", "verdict.md", "verdict.xml",
    }  # fmt: skip


def test_no_server_is_one_clear_line(headway: Headway, monkeypatch: Any) -> None:
    monkeypatch.setattr("headway.client.RETRIES", 0)
    ran = headway("list", "--url", "http://127.0.0.1:9")
    assert ran.status == 1
    assert "no answer from http://127.0.0.1:9" in ran.err
    assert headway("list", "--url", "ftp://x").status == 1
