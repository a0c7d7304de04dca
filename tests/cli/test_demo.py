"""The demo command against a live server: what it says, submits and ends with."""

from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache

from controlplane.accounts.models import User
from controlplane.accounts.services import create_token
from controlplane.experiments.models import Experiment
from controlplane.fleet.models import Profile
from controlplane.runs.models import Run
from headway.calibration import CalibrationError
from headway.follow import View
from tests.cli.conftest import Headway, slow_profile

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _server(live_server: Any, settings: Any, tmp_path: Path, monkeypatch: Any) -> None:
    cache.clear()
    settings.MEDIA_ROOT = tmp_path / "storage"
    monkeypatch.setenv("HEADWAY_URL", live_server.url)
    monkeypatch.setenv("HEADWAY_TOKEN", create_token(user=User.objects.create_user("olga"), name="cli").secret)
    monkeypatch.setattr("headway.follow.POLL_S", 0.01)
    monkeypatch.setattr("headway.calibration.calibrate", lambda **_: slow_profile())
    monkeypatch.setattr("headway.cli.board.Board.show", _fail_all)


def _fail_all(_: Any, view: View) -> None:
    if not view.ended:
        Run.objects.update(state="failed")
        Experiment.objects.update(status="failed", reason="stopped by the test")


def test_it_says_what_it_plays_how_large_and_where_to_look(headway: Headway, live_server: Any) -> None:
    ran = headway("demo")
    experiment = Experiment.objects.get()
    assert ran.status == 1  # no verdict: the test failed every run
    assert "synthetic traffic" in ran.err
    assert "lengths x" in ran.err
    assert "per second" in ran.err
    assert f"{live_server.url}/experiments/{experiment.pk}/" in ran.err
    assert next(arm.name for arm in experiment.arms.all()) == "static"
    assert Run.objects.count() == 15
    assert Profile.objects.get().name == "slow"


def test_a_trace_is_imported_and_played(headway: Headway, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "burst.csv"
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(head + "".join(f"{5 + n},ChatGPT,{50 + n},{10 + n % 7},0,Conversation log\n" for n in range(80)))
    monkeypatch.setenv("TRACE", str(path))
    ran = headway("demo")
    assert "rows of" in ran.err
    trace = Experiment.objects.get().spec["workload"]["trace"]
    assert trace["dataset"].startswith("trc_")
    assert trace["file"] is None


def test_a_missing_trace_and_a_failed_calibration_are_one_line(
    headway: Headway, tmp_path: Path, monkeypatch: Any
) -> None:
    ran = headway("demo", "--trace", tmp_path / "none.csv")
    assert (ran.status, Experiment.objects.count()) == (1, 0)
    assert "there is no file" in ran.err

    def broken(**_: Any) -> None:
        raise CalibrationError("calibration failed: out of memory")

    monkeypatch.setattr("headway.calibration.calibrate", broken)
    ran = headway("demo")
    assert ran.status == 1
    assert "out of memory" in ran.err
