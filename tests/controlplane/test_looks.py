"""Group-sequential experiments: further pairs are queued look by look, and only while they can change the answer."""

from typing import Any

import pytest
from django.test import Client

from controlplane.accounts.models import User
from controlplane.experiments import selectors
from controlplane.experiments.looking import look_further, looks_in_words
from controlplane.experiments.models import ArmRun, Experiment
from controlplane.experiments.services import advance, cancel_experiment, decide_if_finished, submit_experiment
from controlplane.runs.lifecycle import TERMINAL_STATES, State
from controlplane.runs.models import Outbox, Run
from tests.controlplane.test_experiments import play
from tests.samples import EXPERIMENT, POLICY

GOAL = {"primary": "ttft_p95_ms", "better_by": "10%", "guard": {}, "looks": [5, 7, 9]}
LOOKING: dict[str, Any] = {**EXPERIMENT, "goal": GOAL}


def _end(experiment: Experiment, ttft_ms: dict[str, float], *, spread: float = 0.0) -> None:
    """End all open runs; TTFT of an arm is as told, its candidates' swing by ``spread`` from repeat to repeat."""
    for run in selectors.runs_of(experiment).exclude(state__in=TERMINAL_STATES):
        arm, repeat = run.job["arm"], run.job["repeat"]
        swing = 1.0 if arm == "baseline" else 1 + spread * (-1) ** repeat
        play(run, ttft_ms=ttft_ms[arm] * swing)


def _repeats(experiment: Experiment, arm: str) -> list[int]:
    rows = ArmRun.objects.filter(arm__experiment=experiment, arm__name=arm)
    return sorted(rows.values_list("repeat", flat=True))


@pytest.fixture
def experiment(owner: User) -> Experiment:
    return submit_experiment(owner=owner, data=LOOKING)


def test_the_first_look_is_queued_and_a_clear_answer_ends_it_there(experiment: Experiment) -> None:
    assert _repeats(experiment, "chunked") == [0, 1, 2, 3, 4]
    assert looks_in_words(experiment, 5) == "looks declared at 5, 7, 9 pairs; the first is look 1 of 3, at 5 pairs"
    _end(experiment, {"baseline": 100, "chunked": 50}, spread=0.001)
    found = decide_if_finished(experiment.pk)
    assert found is not None and found.status == Experiment.Status.DECIDED
    assert found.verdict is not None and found.verdict["comparisons"][0]["decision"] == "accept"
    assert _repeats(experiment, "chunked") == [0, 1, 2, 3, 4]
    assert looks_in_words(found, 5).endswith("the last was look 1 of 3, at 5 pairs")


def test_an_undecided_look_queues_the_next_pairs_and_the_last_one_ends_it(experiment: Experiment) -> None:
    """The candidate swings by 30 % around a gain of 15 %: no look can tell."""
    levels = {"baseline": 100.0, "chunked": 85.0}
    for queued, following in ((5, 7), (7, 9)):
        _end(experiment, levels, spread=0.3)
        assert decide_if_finished(experiment.pk) is None
        experiment.refresh_from_db()
        assert (experiment.status, experiment.decided_at) == (Experiment.Status.RUNNING, None)
        assert experiment.verdict is not None and experiment.verdict["comparisons"][0]["pairs"] == queued
        assert _repeats(experiment, "chunked") == _repeats(experiment, "baseline") == list(range(following))
        assert f"chunked undecided at {queued} pairs" in looks_in_words(experiment, following)
        advance(experiment.pk)
        experiment.refresh_from_db()
        assert experiment.status == Experiment.Status.RUNNING
    _end(experiment, levels, spread=0.3)
    found = decide_if_finished(experiment.pk)
    assert found is not None and found.verdict is not None
    comparison = found.verdict["comparisons"][0]
    assert (comparison["decision"], comparison["pairs"], comparison["next_look"]) == ("tune", 9, None)
    assert len(_repeats(experiment, "chunked")) == 9


def test_further_runs_are_the_first_ones_again_but_for_repeat_and_noise(experiment: Experiment) -> None:
    _end(experiment, {"baseline": 100, "chunked": 85}, spread=0.3)
    decide_if_finished(experiment.pk)
    runs = list(selectors.runs_of(experiment))
    further = [(run.job["repeat"], run.job["arm"]) for run in runs[10:]]
    assert [repeat for repeat, _ in further] == [5, 5, 6, 6]
    assert sorted(further) == [(5, "baseline"), (5, "chunked"), (6, "baseline"), (6, "chunked")]
    first, later = (run for run in runs if run.job["arm"] == "chunked" and run.job["repeat"] in (0, 6))
    differing = {name for name in first.job if first.job[name] != later.job[name]}
    assert differing == {"repeat", "noise_seed"}
    assert (later.plan_id, later.device_kind, later.total) == (first.plan_id, first.device_kind, first.total)
    assert Outbox.objects.filter(run=later).count() == 1
    assert later.title == "budgets: chunked, repeat 7"


def test_a_decided_candidate_gets_no_further_runs(owner: User) -> None:
    arms = {"baseline": {"policy": "static"}, "fast": POLICY, "vague": {**POLICY, "batch": {"token_budget": 256}}}
    experiment = submit_experiment(owner=owner, data={**LOOKING, "arms": arms})
    for run in selectors.runs_of(experiment):
        arm, repeat = run.job["arm"], run.job["repeat"]
        swing = 1 + 0.3 * (-1) ** repeat if arm == "vague" else 1 + 0.001 * repeat
        play(run, ttft_ms={"baseline": 100, "fast": 50, "vague": 85}[arm] * swing)
    decide_if_finished(experiment.pk)
    assert [len(_repeats(experiment, arm)) for arm in arms] == [7, 5, 7]


def test_two_processes_queue_the_next_pairs_once(experiment: Experiment) -> None:
    _end(experiment, {"baseline": 100, "chunked": 85}, spread=0.3)
    runs = list(selectors.runs_of(experiment))
    decide_if_finished(experiment.pk)
    experiment.refresh_from_db()
    late = {"status": Experiment.Status.DECIDED, "verdict": experiment.verdict}
    assert look_further(experiment, runs, late)
    assert _repeats(experiment, "chunked") == list(range(7))
    assert Run.objects.count() == 14


def test_cancelling_between_looks_ends_it(experiment: Experiment, owner: User) -> None:
    _end(experiment, {"baseline": 100, "chunked": 85}, spread=0.3)
    decide_if_finished(experiment.pk)
    experiment.refresh_from_db()
    cancelled = cancel_experiment(experiment=experiment, user=owner)
    assert (cancelled.status, cancelled.verdict) == (Experiment.Status.CANCELLED, None)
    assert len(_repeats(experiment, "chunked")) == 7


def test_failed_arms_and_experiments_without_looks_get_no_further_runs(owner: User) -> None:
    failing = submit_experiment(owner=owner, data=LOOKING)
    for run in selectors.runs_of(failing):
        play(run, State.SUCCEEDED if run.job["arm"] == "baseline" else State.FAILED)
    found = decide_if_finished(failing.pk)
    assert found is not None and found.verdict is not None
    assert found.verdict["comparisons"][0]["decision"] == "reject"
    plain = submit_experiment(owner=owner, data={**LOOKING, "goal": {**GOAL, "looks": []}, "repeats": 5})
    _end(plain, {"baseline": 100, "chunked": 85}, spread=0.3)
    assert decide_if_finished(plain.pk) is not None
    assert looks_in_words(plain, 5) == ""


def test_the_page_says_where_the_looks_stand(experiment: Experiment, owner: User) -> None:
    _end(experiment, {"baseline": 100, "chunked": 85}, spread=0.3)
    decide_if_finished(experiment.pk)
    client = Client()
    client.force_login(owner)
    page = client.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "chunked undecided at 5 pairs, so the next is look 2 of 3, at 7 pairs" in page
    assert "repeat 7" in page
