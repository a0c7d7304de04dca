"""The dispatch process: no failing item and no outage of database or broker stops or crash-loops it."""

import threading
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from django.db import OperationalError

from controlplane.accounts.models import User
from controlplane.dispatch import loop
from controlplane.dispatch.loop import LONGEST_BACKOFF_S, Chore, ExperimentWatch
from controlplane.errors import BrokerDownError
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import advance as settle
from controlplane.experiments.services import submit_experiment
from controlplane.runs.services import request_cancel
from tests.samples import EXPERIMENT

NOW = datetime(2026, 1, 1)


class TestChore:
    def test_it_is_done_at_its_pace(self) -> None:
        done: list[datetime] = []
        chore = Chore("c", 2.0, done.append)
        for second in range(7):
            chore.turn(second)
        assert len(done) == 4, "at 0, 2, 4 and 6 s"

    @pytest.mark.parametrize(
        "error", [BrokerDownError("gone"), OperationalError("database is locked"), RuntimeError("a fault"), KeyError(1)]
    )
    def test_after_a_failure_it_is_put_off_ever_longer_up_to_a_limit_and_comes_back(self, error: Exception) -> None:
        failing, tries, second = True, list[float](), 0.0

        def work(now: datetime) -> None:
            tries.append(second)
            if failing:
                raise error

        chore = Chore("c", 0.25, work)
        while second < 60:
            chore.turn(second)
            second += 0.25
        gaps = [b - a for a, b in pairwise(tries)]
        assert gaps == sorted(gaps)
        assert gaps[0] == 0.5
        assert gaps[-1] == LONGEST_BACKOFF_S
        failing = False
        for _ in range(40):
            chore.turn(second)
            second += 0.25
        assert (chore.failures, tries[-1] - tries[-2]) == (0, 0.25)


def test_one_failing_chore_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch, db: None) -> None:
    stop, turns = threading.Event(), list[int]()

    def bad(now: datetime) -> None:
        raise RuntimeError("no")

    def good(now: datetime) -> None:
        turns.append(1)
        if len(turns) == 3:
            stop.set()

    monkeypatch.setattr(loop, "TURN_S", 0.01)
    monkeypatch.setattr(loop, "chores", lambda: [Chore("bad", 0.0, bad), Chore("good", 0.0, good)])
    loop.run(stop)
    assert len(turns) == 3


class TestExperimentWatch:
    def test_one_that_cannot_be_settled_does_not_hold_up_the_others(
        self, owner: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bad, good = (submit_experiment(owner=owner, data=EXPERIMENT) for _ in range(2))
        for run in [r for arm in good.arms.all() for r in arm.arm_runs.all()]:
            request_cancel(run=run.run, user=owner)

        def advance(pk: str) -> None:
            if pk == bad.pk:
                raise RuntimeError("no")
            settle(pk)

        monkeypatch.setattr(loop, "advance", advance)
        ExperimentWatch().turn(NOW)
        good.refresh_from_db()
        assert good.status == Experiment.Status.CANCELLED

    def test_viewers_are_told_of_changes_and_of_nothing_else(
        self, owner: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        monkeypatch.setattr(loop, "announce_experiment", told.append)
        experiment = submit_experiment(owner=owner, data=EXPERIMENT)
        watch = ExperimentWatch()
        for _ in range(3):
            watch.turn(NOW)
        assert told == [experiment.pk]
        arm = experiment.arms.first()
        assert arm is not None
        request_cancel(run=arm.arm_runs.all()[0].run, user=owner)
        watch.turn(NOW)
        assert told == [experiment.pk] * 2


def test_settings_accept_and_send_json_alone(settings: Any) -> None:
    from controlplane.celery import app

    assert list(app.conf.accept_content) == ["json"]
    assert app.conf.result_accept_content in (None, ["json"])
    assert (app.conf.task_serializer, app.conf.result_serializer) == ("json", "json")
    assert not app.conf.task_acks_late
    assert app.conf.task_ignore_result
