"""Load sweeps on a server: a run for each arm, load and repeat, each load on a plan of its own, one verdict."""

from typing import Any

import pytest
from django.test import Client

from controlplane.accounts.models import User
from controlplane.experiments import selectors
from controlplane.experiments.exports import export_text
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import check_experiment, decide_if_finished, submit_experiment
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from controlplane.runs.services import claim, finish
from scheduler_core.types.errors import InputError
from tests.controlplane.test_experiments import summary
from tests.samples import EXPERIMENT

SWEEP: dict[str, Any] = {
    **EXPERIMENT,
    "workload": {**EXPERIMENT["workload"], "tiers": {"chat": {"ttft_ms": 200}}},
    "repeats": 5,
    "sweep": {"loads": [8, 2, 4]},
}


@pytest.fixture
def experiment(owner: User) -> Experiment:
    return submit_experiment(owner=owner, data=SWEEP)


def _end(experiment: Experiment, carries: dict[str, float]) -> None:
    """End every run; attainment is whole up to the load an arm carries, and 5 points less a request/s beyond."""
    for run in selectors.runs_of(experiment):
        limit = carries[run.job["arm"]] * (1 + run.job["repeat"] / 500)
        load = run.arm_run.load
        assert load is not None
        share = max(0.0, min(1.0, 1 - 0.05 * (load - limit)))
        _finish(run, {"attainment_share": share, "goodput_rps": load * share, "goodput_per_device_rps": load * share})


def _finish(run: Run, figures: dict[str, float]) -> None:
    made = summary(run, 100.0)
    made["metrics"] |= {name: {"value": value, "unit": "requests/s", "n": 20} for name, value in figures.items()}
    assert claim(run_id=run.pk, attempt=1, worker="w", device=run.pk)
    assert finish(run_id=run.pk, attempt=1, outcome=State.SUCCEEDED, reason="", summary=made)


def test_every_arm_is_queued_at_every_load_on_the_load_s_own_plan(experiment: Experiment) -> None:
    runs = list(selectors.runs_of(experiment))
    assert len(runs) == 2 * 3 * 5
    assert [(run.arm_run.repeat, run.arm_run.load) for run in runs[:6]] == [
        (0, 2.0), (0, 2.0), (0, 4.0), (0, 4.0), (0, 8.0), (0, 8.0),
    ]  # fmt: skip
    assert {run.arm_run.arm.name for run in runs[2:4]} == {"baseline", "chunked"}
    assert len({run.plan_id for run in runs}) == 3
    assert len({run.plan_id for run in runs if run.arm_run.load == 4}) == 1
    assert len({run.job["noise_seed"] for run in runs}) == len(runs)
    assert runs[2].title == f"budgets: {runs[2].arm_run.arm.name} at 4, repeat 1 of 5"


def test_its_verdict_compares_capacities(experiment: Experiment, owner: User) -> None:
    """Attainment is linear between the loads played.

    At 8 the baseline (carries 4) meets 80 %, so 95 % lies at 4 + 4 x 0.05 / 0.2 = 5; the candidate (6) meets 90 % and
    crosses at 4 + 4 x 0.05 / 0.1 = 6. Limits rise a little with the repeat, so the ratio has an interval.
    """
    _end(experiment, {"baseline": 4, "chunked": 6})
    found = decide_if_finished(experiment.pk)
    assert found is not None and found.verdict is not None
    (sweep,) = found.verdict["sweeps"]
    assert (sweep["decision"], found.verdict["exit_code"], found.verdict["comparisons"]) == ("accept", 0, [])
    assert [arm["capacity"] for arm in sweep["arms"]] == pytest.approx([5, 6], rel=0.02)
    assert [gate["metric"] for gate in sweep["gates"]] == ["concurrency_capacity", "goodput_per_device_rps"]
    assert sweep["gates"][0]["change"] == pytest.approx(0.2, rel=0.05)
    browser = Client()
    browser.force_login(owner)
    page = browser.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "Objectives met, %" in page and "load sweep, 3 loads" in page and "baseline carries 5 requests" in page
    assert browser.get("/experiments/?decision=accept").content.decode().count(experiment.pk) >= 1
    for name in ("report.html", "verdict.md", "verdict.xml"):
        assert "chunked carries" in str(export_text(experiment=found, name=name)), name


def test_a_capacity_outside_the_loads_is_not_resolved_and_the_next_sweep_reaches_further(
    experiment: Experiment, owner: User
) -> None:
    _end(experiment, {"baseline": 4, "chunked": 100})
    found = decide_if_finished(experiment.pk)
    assert found is not None and found.verdict is not None
    (sweep,) = found.verdict["sweeps"]
    assert sweep["decision"] == "tune" and "not resolved" in sweep["headline"]
    (step,) = sweep["next_steps"]
    assert step["experiment"]["sweep"]["loads"] == [2, 4, 8, 16, 32]
    assert len(submit_experiment(owner=owner, data=step["experiment"]).arms.all()) == 2


def test_what_cannot_be_swept_is_refused(owner: User) -> None:
    with pytest.raises(InputError, match="each load once"):
        check_experiment(data={**SWEEP, "sweep": {"loads": [2, 2, 4]}}, user=owner)
    with pytest.raises(InputError, match="looks once"):
        check_experiment(data={**SWEEP, "goal": {"looks": [5, 10]}}, user=owner)
    ramp = {**SWEEP["workload"], "arrivals": {"ramp": {"from_rps": 1, "to_rps": 2, "over_s": 3}}}
    with pytest.raises(InputError, match="has no one rate"):
        check_experiment(data={**SWEEP, "workload": ramp}, user=owner)


def test_users_of_a_closed_loop_are_swept_too(owner: User) -> None:
    closed = {**SWEEP["workload"], "arrivals": {"closed": {"concurrency": 3}}}
    experiment = submit_experiment(owner=owner, data={**SWEEP, "workload": closed, "sweep": {"loads": [1, 2, 4]}})
    assert {run.arm_run.load for run in selectors.runs_of(experiment)} == {1.0, 2.0, 4.0}
