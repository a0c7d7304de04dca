"""Guided plans and searches on a server: each next experiment is made from what the one before found."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.core.files.base import ContentFile
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.dispatch.loop import advance_studies
from controlplane.errors import ConflictError
from controlplane.evidence.models import Artifact
from controlplane.experiments import selectors as experiments
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import cancel_experiment, decide_if_finished
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from controlplane.runs.services import claim, finish
from controlplane.runs.supervision.workdir import prepare
from controlplane.studies.exports import study_report
from controlplane.studies.models import Study
from controlplane.studies.services import (
    advance_study,
    cancel_study,
    resume_study,
    start_guided,
    start_search,
)
from scheduler_core.spec.job import SearchJob
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.guided import LAST
from scheduler_core.verdict.search import SearchResult, Trial
from tests.controlplane.test_experiments import play
from tests.samples import WORKLOAD

GUIDED: dict[str, Any] = {
    "name": "tuning", "workload": WORKLOAD, "target": {"torch": {"device": "cpu"}}, "goal": {"guard": {}},
}  # fmt: skip
SEARCH: dict[str, Any] = {
    "name": "budgets", "workload": WORKLOAD, "space": {"batch.size": {"values": [4, 8]}}, "method": "grid",
    "confirm": {"target": {"torch": {"device": "cpu"}}, "best": 1, "goal": {"guard": {}}},
}  # fmt: skip


def _stages(study: Study) -> list[tuple[int, str]]:
    return [(stage.number, stage.experiment.status) for stage in study.stages.order_by("number")]


def _end(experiment: Experiment, better: str | None) -> None:
    """End every run; the arm called ``better`` has half the TTFT of the others."""
    for run in experiments.runs_of(experiment):
        play(run, ttft_ms=50.0 if run.job["arm"] == better else 100.0)
    assert decide_if_finished(experiment.pk) is not None


class TestGuided:
    @pytest.fixture
    def study(self, owner: User) -> Study:
        return start_guided(owner=owner, data=GUIDED)

    def test_the_first_stage_is_submitted_at_once(self, study: Study) -> None:
        (stage,) = study.stages.all()
        assert (stage.number, stage.experiment.name) == (0, "tuning 1 step selection")
        assert experiments.spec_of(stage.experiment).arms["baseline"].policy == "static"

    def test_each_stage_starts_from_what_was_accepted_to_the_outcome(self, study: Study) -> None:
        wins = {0: "continuous", 1: None, 2: "budget 512", LAST: "outcome"}
        for number, better in wins.items():
            stage = study.stages.last()
            assert stage is not None and stage.number == number
            _end(stage.experiment, better)
            advance_studies(timezone.now())
        study.refresh_from_db()
        assert study.status == Study.Status.ENDED and study.reason.startswith("accept: ttft_p95_ms is better")
        arms = {stage.number: experiments.spec_of(stage.experiment).arms for stage in study.stages.all()}
        assert arms[1]["baseline"].policy == "vllm_v1"
        assert arms[2]["baseline"] == arms[1]["baseline"]  # nothing was accepted in between
        assert arms[LAST]["outcome"].batch.token_budget == 512
        assert arms[LAST]["baseline"].policy == "static"
        page = study_report(study)
        assert "1. step selection" in page and "goes on with budget 512" in page

    def test_nothing_happens_while_a_stage_is_open(self, study: Study) -> None:
        advance_study(study)
        advance_study(study)
        assert _stages(study) == [(0, "queued")]

    def test_without_any_gain_it_ends_and_says_so(self, study: Study) -> None:
        while study.status == Study.Status.RUNNING:
            stage = study.stages.last()
            assert stage is not None
            _end(stage.experiment, None)
            advance_study(study)
            study.refresh_from_db()
        assert study.reason == "no stage found anything better than the reference"

    def test_a_cancelled_stage_stops_it_and_it_can_go_on(self, study: Study, owner: User) -> None:
        first = study.stages.get().experiment
        cancel_experiment(experiment=first, user=owner)
        advance_study(study)
        study.refresh_from_db()
        assert study.status == Study.Status.CANCELLED and "runs were cancelled" in study.reason
        resume_study(study=study, user=owner)
        assert study.status == Study.Status.RUNNING
        again = study.stages.get().experiment
        assert again.pk != first.pk and again.cloned_from == first

    def test_cancelling_stops_its_open_experiment(self, study: Study, owner: User, teammate: User) -> None:
        with pytest.raises(PermissionDenied):
            cancel_study(study=study, user=teammate)
        cancel_study(study=study, user=owner)
        assert study.status == Study.Status.CANCELLED
        assert _stages(study) == [(0, "cancelled")]
        with pytest.raises(ConflictError, match="already ended"):
            cancel_study(study=study, user=owner)

    def test_mistakes_are_named(self, owner: User) -> None:
        with pytest.raises(InputError, match="start"):
            start_guided(owner=owner, data={**GUIDED, "start": {"policy": "static", "batch": {"sise": 1}}})
        assert not Study.objects.exists()


class TestSearch:
    @pytest.fixture
    def study(self, owner: User) -> Study:
        return start_search(owner=owner, data=SEARCH)

    def _hand_in(self, study: Study, best: list[int]) -> None:
        run = study.run
        assert run is not None
        assert claim(run_id=run.pk, attempt=1, worker="w", device="d")
        figures = {"cost_per_million_tokens": 1.0, "throughput_finished_tokens_per_s": 9.0, "ttft_p95_ms": 5.0}
        trials = [
            Trial(number=0, choice={}, figures=figures),
            Trial(number=1, choice={"batch.size": "4"}, figures=figures),
        ]
        result = SearchResult(
            name="budgets", method="grid", objectives={"cost_per_million_tokens": "lower", "ttft_p95_ms": "lower"},
            trials=trials, front=[0, 1], best=best, sentence="2 policies played",
        )  # fmt: skip
        data = json.dumps(result.canonical()).encode()
        Artifact.objects.create(
            run=run, attempt=1, name="search.json", file=ContentFile(data, "search.json"), bytes=len(data), sha256="0"
        )
        assert finish(run_id=run.pk, attempt=1, outcome=State.SUCCEEDED, reason="done", summary=None)

    def test_it_is_one_run_of_its_own_kind(self, study: Study) -> None:
        assert study.run is not None
        assert (study.run.kind, study.run.device_kind, study.run.total) == (Run.Kind.SEARCH, "cpu", 40)
        assert study.run.job["profile"]["cost"]

    def test_a_worker_starts_it_as_a_process_of_its_own(self, study: Study, settings: Any) -> None:
        settings.RUN_SEARCH_COMMAND = ["search"]
        assert study.run is not None
        folder, command = prepare(study.run)
        assert command == ["search", str(folder / "job.json")]
        job = parse(SearchJob, json.loads((folder / "job.json").read_text()))
        assert job.spec.name == "budgets" and Path(job.plan_file).is_file()

    def test_the_best_are_confirmed_in_an_experiment_that_is_linked(self, study: Study) -> None:
        advance_study(study)
        assert not study.stages.exists()
        self._hand_in(study, [1])
        study = Study.objects.get(pk=study.pk)
        advance_study(study)
        experiment = study.stages.get().experiment
        assert experiment.name == "budgets confirmed"
        arms = experiments.spec_of(experiment).arms
        assert list(arms) == ["baseline", "trial 1"] and arms["trial 1"].batch.size == 4
        _end(experiment, "trial 1")
        advance_study(Study.objects.get(pk=study.pk))
        study.refresh_from_db()
        assert study.status == Study.Status.ENDED and study.reason.startswith("confirmed: accept")
        assert "2 policies played" in study_report(study)

    def test_without_anything_better_there_is_nothing_to_confirm(self, study: Study) -> None:
        self._hand_in(study, [])
        study = Study.objects.get(pk=study.pk)
        advance_study(study)
        study.refresh_from_db()
        assert (study.status, study.reason) == (Study.Status.ENDED, "2 policies played")

    def test_a_search_that_fails_says_why_and_can_be_tried_again(self, study: Study, owner: User) -> None:
        assert study.run is not None
        play(study.run, outcome=State.FAILED)
        study = Study.objects.get(pk=study.pk)
        advance_study(study)
        study.refresh_from_db()
        assert study.status == Study.Status.FAILED and "it broke" in study.reason
        resume_study(study=study, user=owner)
        assert study.status == Study.Status.RUNNING
        assert study.run is not None
        study.run.refresh_from_db()
        assert (study.run.state, study.run.attempt) == (State.QUEUED, 2)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"space": {"batch.max_wait_ms": {"values": [1]}}}, "space.batch.max_wait_ms"),
            ({"base": {"policy": "nobody"}}, "base.policy"),
            ({"target": {"modelled": {"profile": "nowhere"}}}, "nowhere"),
        ],
    )
    def test_mistakes_are_named(self, owner: User, change: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            start_search(owner=owner, data={**SEARCH, **change})
        assert not Run.objects.exists()
