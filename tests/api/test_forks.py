"""Forking a modelled run: over REST and from the run's page."""

from typing import Any

import pytest
from django.test import Client

from controlplane.accounts.models import User
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import submit_experiment
from controlplane.runs.models import Run
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.parse import parse
from tests.api.conftest import Api
from tests.samples import EXPERIMENT, POLICY

MODELLED = {**EXPERIMENT, "target": {"modelled": {"noise": False}}, "arms": {"baseline": POLICY}}
CHANGED = {**POLICY, "batch": {"token_budget": 64}}


@pytest.fixture
def run(owner: User) -> Run:
    experiment = submit_experiment(owner=owner, data=MODELLED)
    return Run.objects.filter(arm_run__arm__experiment=experiment).order_by("place")[0]


def test_a_fork_is_an_experiment_of_two_arms_with_one_beginning(api: Api, run: Run) -> None:
    answer = api.post(f"/runs/{run.pk}/fork", {"at_s": 1.5, "policy": CHANGED})
    assert answer.status_code == 201
    data = answer.json()
    assert (data["name"], data["cloned_from"]) == ("budgets forked at 1.5 s", run.arm_run.arm.experiment_id)
    assert data["spec"]["fork"] == {"at_s": 1.5}
    assert (set(data["spec"]["arms"]), data["spec"]["baseline"]) == ({"as-it-was", "changed"}, "as-it-was")
    jobs = [Run.objects.get(pk=item["id"]).job for item in data["runs"]]
    assert {job["policy"]["batch"]["token_budget"] for job in jobs} == {512, 64}
    assert {job["fork"]["policy"]["batch"]["token_budget"] for job in jobs} == {512}
    assert len({job["noise_seed"] for job in jobs}) == 2  # one a repeat, the same for both arms
    parse(RunJob, {**jobs[0], "run": "r", "plan_file": "p", "workdir": "w"})


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"at_s": -1, "policy": CHANGED}, "at_s"),
        ({"at_s": 1, "policy": {**POLICY, "cache": {"block_size": 8}}}, "policy.cache.block_size"),
        ({"at_s": 1, "policy": {"policy": "static"}}, "policy.policy"),
        ({"at_s": 1, "policy": {"policy": "vllm_v1", "batch": {"sise": 3}}}, "policy.batch.sise"),
    ],
)
def test_what_is_wrong_with_a_fork_is_named(body: Any, where: str, api: Api, run: Run) -> None:
    answer = api.post(f"/runs/{run.pk}/fork", body)
    assert answer.status_code in (400, 422)
    assert where in answer.content.decode()
    assert Experiment.objects.count() == 1


def test_kernels_cannot_be_forked(api: Api, owner: User) -> None:
    experiment = submit_experiment(owner=owner, data=EXPERIMENT)
    run = Run.objects.filter(arm_run__arm__experiment=experiment)[0]
    answer = api.post(f"/runs/{run.pk}/fork", {"at_s": 1, "policy": CHANGED})
    assert answer.status_code == 409
    assert "only a modelled run" in answer.json()["detail"]


def test_a_page_forks_too(run: Run, owner: User) -> None:
    client = Client()
    client.force_login(owner)
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert "Fork here" in page and "token_budget: 512" in page
    text = "policy: vllm_v1\nbatch: {token_budget: 64}\n"
    answer = client.post(f"/runs/{run.pk}/fork/", {"at_s": "1.5", "policy": text})
    made = Experiment.objects.get(name="budgets forked at 1.5 s")
    assert answer["Location"] == f"/experiments/{made.pk}/"
    told = client.post(f"/runs/{run.pk}/fork/", {"at_s": "soon", "policy": text}, follow=True).content.decode()
    assert "at_s" in told
    assert Experiment.objects.count() == 2
