"""The lease as its keeper sees it, and what the run's messages do."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import OperationalError

from controlplane.errors import FencedError
from controlplane.evidence.selectors import samples_after
from controlplane.evidence.services import append_samples, store_artifact
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from controlplane.runs.services import LeaseState
from controlplane.runs.supervision import intake as intake_module
from controlplane.runs.supervision import lease as lease_module
from controlplane.runs.supervision.intake import BadMessageError, Intake
from controlplane.runs.supervision.lease import LeaseKeeper

MakeRun = Callable[..., Run]


@contextmanager
def keeper(monkeypatch: pytest.MonkeyPatch, settings: Any, renew: Callable[..., LeaseState]) -> Iterator[LeaseKeeper]:
    """A keeper with a lease of 0.4 s and a heartbeat of 0.1 s, over a stand-in for the database."""
    settings.RUN_HEARTBEAT, settings.RUN_LEASE = timedelta(seconds=0.1), timedelta(seconds=0.4)
    monkeypatch.setattr(lease_module, "renew_lease", renew)
    monkeypatch.setattr(lease_module, "close_old_connections", lambda: None)
    with LeaseKeeper(run_id="run_x", attempt=1, worker="w") as kept:
        yield kept


def within(seconds: float, true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


class TestLeaseKeeper:
    def test_what_is_asked_for_is_learned(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        def renew(**lease: Any) -> LeaseState:
            assert lease == {"run_id": "run_x", "attempt": 1, "worker": "w"}
            return LeaseState(still_mine=True, cancel_requested=True, worker_stopping=True)

        with keeper(monkeypatch, settings, renew) as kept:
            assert not kept.cancel_requested
            assert within(2, lambda: kept.cancel_requested and kept.worker_stopping)
            assert kept.lost == ""

    def test_a_lease_taken_away_is_lost_at_the_next_heartbeat(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        with keeper(monkeypatch, settings, lambda **_: LeaseState(still_mine=False)) as kept:
            assert within(2, lambda: kept.lost) == "the run is no longer held by this attempt"

    def test_one_missed_renewal_is_nothing_and_silence_for_almost_the_lease_is_its_end(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        calls: list[float] = []

        def renew(**_: Any) -> LeaseState:
            calls.append(time.monotonic())
            if len(calls) != 2:
                raise OperationalError("the database is down")
            return LeaseState(still_mine=True)

        with keeper(monkeypatch, settings, renew) as kept:
            assert within(2, lambda: len(calls) >= 2)
            assert kept.lost == ""
            assert "could not be renewed" in within(2, lambda: kept.lost)
            assert time.monotonic() - calls[1] > 0.25

    def test_a_renewal_that_hangs_counts_as_missed(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        going_on = threading.Event()

        def renew(**_: Any) -> LeaseState:
            going_on.wait(5)
            return LeaseState(still_mine=True)

        with keeper(monkeypatch, settings, renew) as kept:
            assert "could not be renewed" in within(2, lambda: kept.lost)
            going_on.set()


class TestIntake:
    @pytest.fixture
    def taking(self, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Intake]:
        monkeypatch.setattr(intake_module, "STORE_TRIES_S", (0.0, 0.0, 0.0))
        run = make_run(State.STARTING)
        folder = tmp_path / "work"
        folder.mkdir()
        return run, Intake(run_id=run.pk, attempt=1, folder=folder)

    def say(self, intake: Intake, kind: str, **fields: Any) -> None:
        intake.take(json.dumps({"type": kind, **fields}).encode())

    def hand_in(self, intake: Intake, folder: Path, name: str = "summary.json") -> None:
        (folder / name).write_text("{}")
        digest = hashlib.sha256(b"{}").hexdigest()
        self.say(intake, "artifact", name=name, file=name, bytes=2, sha256=digest)

    def test_samples_and_progress_are_gathered_and_written_together(self, taking: tuple[Run, Intake]) -> None:
        run, intake = taking
        for seq in (1, 2, 3):
            self.say(intake, "sample", seq=seq, values={"waiting": seq})
            self.say(intake, "progress", done=seq, total=9)
        assert samples_after(run=run, attempt=1, seq=0) == []
        intake.flush(now=True)
        assert [row["seq"] for row in samples_after(run=run, attempt=1, seq=0)] == [1, 2, 3]
        run.refresh_from_db()
        assert (run.done, run.total, run.eta_s) == (3, 9, None)

    @pytest.mark.parametrize(
        "line",
        [b"hello\n", b"{}\n", b"[]", b'{"type": "sample"}', b'{"type": "smaple", "seq": 1}', b"\xff\xfe", b"null"],
    )
    def test_anything_else_is_a_fault_that_quotes_the_line(self, taking: tuple[Run, Intake], line: bytes) -> None:
        with pytest.raises(BadMessageError, match="no message") as fault:
            taking[1].take(line)
        assert line.strip().decode(errors="replace") in str(fault.value)

    def test_what_a_busy_database_refuses_stays_gathered(
        self, taking: tuple[Run, Intake], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, intake = taking
        store = append_samples
        monkeypatch.setattr(intake_module, "connection", type("Closed", (), {"close": staticmethod(lambda: None)}))
        monkeypatch.setattr(intake_module, "FLUSH_EVERY_S", 0.0)

        def locked(**_: Any) -> int:
            raise OperationalError("database is locked")

        monkeypatch.setattr(intake_module, "append_samples", locked)
        self.say(intake, "sample", seq=1, values={})
        intake.flush()
        monkeypatch.setattr(intake_module, "append_samples", store)
        self.say(intake, "sample", seq=2, values={})
        intake.flush()
        assert [row["seq"] for row in samples_after(run=run, attempt=1, seq=0)] == [1, 2]

    def test_a_storage_that_fails_for_a_while_is_tried_again(
        self, taking: tuple[Run, Intake], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        run, intake = taking
        store, tries = store_artifact, list[int]()
        monkeypatch.setattr(intake_module, "connection", type("Closed", (), {"close": staticmethod(lambda: None)}))

        def flaky(**fields: Any) -> Any:
            tries.append(1)
            if len(tries) < 3:
                raise OSError("no route to host")
            return store(**fields)

        monkeypatch.setattr(intake_module, "store_artifact", flaky)
        self.hand_in(intake, tmp_path / "work")
        assert run.artifacts.get().name == "summary.json"

        def gone(**_: Any) -> Any:
            raise OSError("gone")

        monkeypatch.setattr(intake_module, "store_artifact", gone)
        with pytest.raises(OSError, match="gone"):
            self.hand_in(intake, tmp_path / "work", "audit.json")

    def test_an_attempt_that_lost_the_run_is_fenced_at_its_next_message(
        self, taking: tuple[Run, Intake], tmp_path: Path
    ) -> None:
        run, intake = taking
        Run.objects.filter(pk=run.pk).update(attempt=2)
        self.say(intake, "sample", seq=1, values={})
        steps: list[Callable[[], None]] = [
            lambda: self.say(intake, "state", state="running"),
            lambda: self.hand_in(intake, tmp_path / "work"),
            lambda: intake.flush(now=True),
        ]
        for step in steps:
            with pytest.raises(FencedError):
                step()
        assert not run.artifacts.exists()
        assert samples_after(run=run, attempt=1, seq=0) == []


def test_a_lease_that_is_no_longer_than_three_heartbeats_is_an_error(settings: Any) -> None:
    assert not [found for found in run_checks() if found.id == "runs.E001"]
    settings.RUN_LEASE = settings.RUN_HEARTBEAT * 2
    found = [item for item in run_checks() if item.id == "runs.E001"]
    assert "HEADWAY_LEASE_S" in found[0].msg
