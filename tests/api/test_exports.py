"""Exports over REST: what the stored evidence says, as attachments, and a clear word where it is missing."""

import csv
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from django.test import Client

from controlplane.accounts.models import User
from controlplane.evidence import exports
from controlplane.evidence.models import Artifact, Segment
from controlplane.experiments.models import Experiment
from controlplane.runs.models import Run
from scheduler_core.evidence.formulas.side_by_side import FormulaTable
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.tables.tables import read_table
from tests.api.conftest import Api, World, store_run
from tests.evidence.metrics.test_metrics import single_tokens
from tests.evidence.scenes import Scene
from tests.ui.samples import VERDICT

NAMES = ("report.html", "timeline.json", "requests.csv", "steps.csv", "gaps.csv", "benchmark.json")


def _get(api: Api, address: str) -> bytes:
    response: Any = api.get(address)
    assert response.status_code == 200, (address, response.content)
    assert response["Content-Disposition"].startswith("attachment")
    assert response["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in response["Content-Security-Policy"]
    data = b"".join(response.streaming_content)
    assert int(response["Content-Length"]) == len(data)
    return data


def test_a_run_comes_as_report_timeline_and_tables(world: World, api: Api, folder: Path) -> None:
    address = f"/runs/{world.run.pk}/exports"
    page = _get(api, f"{address}/report.html").decode()
    assert page.startswith("<!doctype html>")
    assert "http://" not in page and "https://" not in page and "<script" not in page  # opens offline
    events = json.loads(_get(api, f"{address}/timeline.json"))["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    for name in exports.TABLES:
        rows = list(csv.DictReader(io.StringIO(_get(api, f"{address}/{name}.csv").decode())))
        kept = read_table(folder / f"{name}.parquet")
        assert (len(rows), list(rows[0])) == (kept.num_rows, kept.column_names)
        if name == "steps":
            assert len(steps) == len(rows)
    shared = json.loads(_get(api, f"{address}/benchmark.json"))
    role = "baseline" if world.run.job["arm"] == "baseline" else "candidate"
    assert (shared["schema_version"], shared["role"]) == ("inference-benchmark/v1", role)


def test_only_what_can_be_had_is_offered(world: World, folder: Path, monkeypatch: Any) -> None:
    run = Run.objects.get(pk=world.run.pk)
    assert [item.name for item in exports.offered(run)] == list(NAMES)
    monkeypatch.setattr(exports, "RECORDS_MAX_BYTES", 1000)
    Artifact.objects.filter(run=run, name="gaps.parquet").delete()
    assert [item.name for item in exports.offered(run)] == [
        "report.html", "requests.csv", "steps.csv", "benchmark.json",
    ]  # fmt: skip


def test_missing_evidence_is_said_and_unknown_names_are_not_found(world: World, api: Api) -> None:
    Segment.objects.all().delete()
    for name, word in zip(NAMES, ("summary", "records", "requests", "steps", "gaps", "summary"), strict=True):
        response: Any = api.get(f"/runs/{world.run.pk}/exports/{name}")
        assert (response.status_code, response.json()["code"]) == (409, "conflict")
        assert word in response.json()["detail"]
    assert exports.offered(Run.objects.get(pk=world.run.pk)) == []
    assert api.get(f"/runs/{world.run.pk}/exports/..%2Fsummary.json").status_code == 404
    assert api.get(f"/experiments/{world.experiment.pk}/exports/bogus").status_code == 404
    early: Any = api.get(f"/experiments/{world.experiment.pk}/exports/verdict.xml")
    assert early.status_code == 409
    assert "no verdict to export: it is queued" in early.json()["detail"]


def test_a_timeline_of_too_many_records_is_refused_with_the_limit(
    world: World, api: Api, folder: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(exports, "RECORDS_MAX_BYTES", 1000)
    response: Any = api.get(f"/runs/{world.run.pk}/exports/timeline.json")
    assert response.status_code == 409
    assert "a timeline is drawn of at most" in response.json()["detail"]


def test_a_file_gone_from_the_storage_is_said(world: World, api: Api, folder: Path) -> None:
    stored = Artifact.objects.get(run=world.run, name="steps.parquet").file
    stored.storage.delete(str(stored.name))
    response: Any = api.get(f"/runs/{world.run.pk}/exports/steps.csv")
    assert response.status_code == 409
    assert "no longer in the storage" in response.json()["detail"]


def test_a_verdict_comes_as_report_pull_request_text_and_junit(world: World, api: Api, folder: Path) -> None:
    Experiment.objects.update(verdict=VERDICT, status="decided")
    address = f"/experiments/{world.experiment.pk}/exports"
    page = _get(api, f"{address}/report.html").decode()
    assert "accept chunked" in page and "<h2>Runs</h2>" in page
    assert "**accept**" in _get(api, f"{address}/verdict.md").decode()
    suite = ET.fromstring(_get(api, f"{address}/verdict.xml"))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "0", "2")


def test_figures_by_another_tools_formulas(world: World, api: Api, folder: Path) -> None:
    """Same requests: where formulas agree the numbers do, and the answer tells both formulas and why they differ."""
    for address, arm in ((f"/runs/{world.run.pk}/metrics", "a"), (f"/experiments/{world.experiment.pk}/metrics", None)):
        table = api.get(f"{address}?formulas=guidellm").json()
        assert FormulaTable.model_validate(table).tool == "guidellm"
        row = next(row for row in table["rows"] if row["metric"] == "tpot_mean_ms")
        values = row["arms"][arm or world.run.job["arm"]]
        assert values["theirs"]["value"] > values["headway"]["value"] > 0  # the first token is inside theirs
        assert row["formula"] and row["headway_formula"] and row["differs"]
        own = api.get(address).json()
        assert {row["metric"] for row in own["rows"]} == set(METRICS)
    refused = api.get(f"/runs/{world.run.pk}/metrics?formulas=tgi")
    assert refused.status_code == 400 and "guidellm" in refused.content.decode()
    for without in ({"kind": "calibration", "summary": {"profile": "mine"}}, {"summary": None}):
        Run.objects.filter(pk=world.run.pk).update(**without)
        empty = api.get(f"/runs/{world.run.pk}/metrics").json()
        assert all(row["arms"] == {} for row in empty["rows"])


def test_one_number_on_the_screen_in_exports_and_in_the_api(
    world: World, api: Api, owner: User, tmp_path: Path
) -> None:
    """TTFT 1,615.58 ms and TPOT 48.82 ms, in ms everywhere, the unit in the column's name; shown as 1,616 and 48.8."""
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 1615.58, [(0, 10)])
    scene.step(1615.58, 1664.40, [(0, 1)])
    scene.finish(0, 1664.40)
    store_run(world.run, scene.end(1664.40), tmp_path)
    address = f"/runs/{world.run.pk}"
    stored = api.get(address).json()["summary"]["metrics"]
    row = next(csv.DictReader(io.StringIO(_get(api, f"{address}/exports/requests.csv").decode())))
    exchange = json.loads(_get(api, f"{address}/exports/benchmark.json"))["metrics"]
    told = {item["metric"]: item["arms"]["a"]["headway"] for item in api.get(f"{address}/metrics").json()["rows"]}
    client = Client()
    client.force_login(owner)
    screen = client.get(f"/runs/{world.run.pk}/").content.decode()
    report = _get(api, f"{address}/exports/report.html").decode()
    for name, value, shown in (("ttft", 1615.58, "1,616"), ("tpot", 48.82, "48.8")):
        for found in (stored, told):
            assert found[f"{name}_mean_ms"]["unit"] == "ms"
            assert found[f"{name}_mean_ms"]["value"] == pytest.approx(value, abs=1e-9)
        assert float(row[f"{name}_ms"]) == exchange[f"{name}_ms"] == stored[f"{name}_mean_ms"]["value"]
        assert f"{shown}<small> ms</small>" in screen
        assert f"<td>{name}_mean_ms</td><td>{shown} ms" in report


def test_answers_of_one_token_leave_no_export_empty_and_no_page_broken(
    world: World, api: Api, owner: User, tmp_path: Path
) -> None:
    """487 answers of one token: TTFT of all, TPOT "not defined (0 samples)" everywhere, never 0 and never NaN."""
    store_run(world.run, single_tokens(487).end(4870), tmp_path)
    address = f"/runs/{world.run.pk}"
    rows = list(csv.DictReader(io.StringIO(_get(api, f"{address}/exports/requests.csv").decode())))
    assert len(rows) == 487
    assert {(row["tpot_ms"], row["tpot_ms_absence"]) for row in rows} == {("", "not_applicable")}
    assert len(_get(api, f"{address}/exports/gaps.csv").decode().splitlines()) == 1  # the names alone
    exchange = json.loads(_get(api, f"{address}/exports/benchmark.json"))
    assert (exchange["metrics"]["tpot_ms"], exchange["absence"]["tpot_ms"]) == (None, "not_applicable")
    report = _get(api, f"{address}/exports/report.html").decode()
    assert "<td>tpot_p95_ms</td><td>not_applicable (not defined (0 samples))" in report
    client = Client()
    client.force_login(owner)
    for query in ("", "?formulas=vllm-bench"):
        screen = client.get(f"/runs/{world.run.pk}/{query}").content.decode()
        assert "487 = 487 sent + 0 not sent" in screen and "does not apply" in screen
        assert "nan" not in screen.lower().replace("tenant", "").replace("finance", "")
