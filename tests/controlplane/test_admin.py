"""The admin: every list and detail opens, run state is read-only, actions and forms go through the services."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from controlplane.accounts.models import User
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import submit_experiment
from controlplane.fleet.models import Worker
from controlplane.fleet.services import register_worker
from controlplane.policies.models import Policy
from controlplane.policies.services import create_policy
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from controlplane.workloads.models import Dataset, Workload
from tests.controlplane.test_workloads import TRACE
from tests.samples import EXPERIMENT, WORKLOAD

OURS = ("runs", "evidence", "fleet", "experiments", "workloads", "policies")


@pytest.fixture
def root(db: None) -> User:
    return User.objects.create_superuser("root", password="a long password")


@pytest.fixture
def browser(root: User) -> Client:
    client = Client()
    client.force_login(root)
    return client


def act(browser: Client, model: str, action: str, *pks: str) -> str:
    url = reverse(f"admin:{model}_changelist")
    answer = browser.post(url, {"action": action, "_selected_action": list(pks)}, follow=True)
    assert answer.status_code == 200
    return " ".join(str(message) for message in answer.context["messages"])


def test_every_model_is_there() -> None:
    missing = [
        model.__name__
        for name in OURS
        for model in apps.get_app_config(name).get_models()
        if not admin.site.is_registered(model) and model.__name__ != "Arm"
    ]
    assert missing == []


def test_every_list_and_search_opens(browser: Client, owner: User, make_run: Callable[..., Run]) -> None:
    submit_experiment(owner=owner, data=EXPERIMENT)
    make_run(State.RUNNING)
    register_worker(name="cpu@a", host="a", pid=1, device_kind="cpu", device="a/cpu:0")
    for model in admin.site._registry:
        if model._meta.app_label in OURS:
            url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
            assert browser.get(url).status_code == 200, url
            assert browser.get(url, {"q": "a"}).status_code == 200, url


def test_a_run_is_shown_and_cannot_be_edited(browser: Client, make_run: Callable[..., Run]) -> None:
    run = make_run(State.RUNNING)
    url = reverse("admin:runs_run_change", args=[run.pk])
    page = browser.get(url)
    assert page.status_code == 200
    assert 'name="state"' not in page.content.decode()
    assert browser.post(url, {"state": "succeeded"}).status_code == 403
    assert browser.post(reverse("admin:runs_run_delete", args=[run.pk]), {"post": "yes"}).status_code == 403
    run.refresh_from_db()
    assert run.state == State.RUNNING


def test_run_actions(browser: Client, make_run: Callable[..., Run]) -> None:
    queued, done = make_run(), make_run(State.SUCCEEDED)
    said = act(browser, "runs_run", "cancel", queued.pk, done.pk)
    assert "1 runs asked to end" in said
    assert "already ended: succeeded" in said
    act(browser, "runs_run", "retry", queued.pk)
    queued.refresh_from_db()
    assert (queued.state, queued.attempt) == (State.QUEUED, 2)
    running = make_run(State.RUNNING)
    act(browser, "runs_run", "close_by_force", running.pk)
    running.refresh_from_db()
    assert running.state == State.LOST


def test_actions_ask_the_service_whether_this_person_may(make_run: Callable[..., Run], teammate: User) -> None:
    """Somebody let into the admin by a permission alone, who is staff no longer when acting."""
    run = make_run()
    teammate.user_permissions.add(Permission.objects.get(codename="view_run"))
    User.objects.filter(pk=teammate.pk).update(is_staff=True)
    client = Client()
    client.force_login(User.objects.get(pk=teammate.pk))
    User.objects.filter(pk=teammate.pk).update(is_staff=False)
    client.post(reverse("admin:runs_run_changelist"), {"action": "cancel", "_selected_action": [run.pk]})
    run.refresh_from_db()
    assert run.state == State.QUEUED


def test_a_policy_is_made_and_versioned_through_the_service(browser: Client, owner: User) -> None:
    url = reverse("admin:policies_policy_add")
    assert browser.get(url).status_code == 200
    data = {"name": "small", "owner": owner.pk, "spec": "policy: vllm_v1\nbatch: {token_budgt: 3}"}
    page = browser.post(url, data).content.decode()
    assert "did you mean" in page
    assert not Policy.objects.exists()
    assert browser.post(url, data | {"spec": "policy: vllm_v1"}).status_code == 302
    policy = Policy.objects.get()
    change = reverse("admin:policies_policy_change", args=[policy.pk])
    assert browser.get(change).status_code == 200
    assert browser.post(change, {"spec": "policy: static"}).status_code == 302
    assert [version.spec["policy"] for version in policy.versions.all()] == ["static", "vllm_v1"]
    act(browser, "policies_policy", "archive", policy.pk)
    policy.refresh_from_db()
    assert policy.archived_at


def test_a_workload_is_made_and_versioned_through_the_service(browser: Client, owner: User) -> None:
    url = reverse("admin:workloads_workload_add")
    data = {"name": "w", "owner": owner.pk, "spec": yaml.safe_dump(WORKLOAD | {"requests": 0})}
    assert "requests" in browser.post(url, data).content.decode()
    assert not Workload.objects.exists()
    assert browser.post(url, data | {"spec": yaml.safe_dump(WORKLOAD)}).status_code == 302
    change = reverse("admin:workloads_workload_change", args=[Workload.objects.get().pk])
    assert browser.post(change, {"spec": yaml.safe_dump(WORKLOAD | {"seed": 5})}).status_code == 302
    assert [version.number for version in Workload.objects.get().versions.all()] == [2, 1]


def test_a_trace_is_imported_whole_or_not_at_all(browser: Client, owner: User) -> None:
    url = reverse("admin:workloads_dataset_add")

    def post(text: str) -> Any:
        file = SimpleUploadedFile("t.csv", text.encode())
        return browser.post(url, {"name": "t", "owner": owner.pk, "format": "", "options": "{}", "file": file})

    assert post(TRACE + "2023-11-16 18:17:09.0000000,x,1\n").status_code == 200
    assert not Dataset.objects.exists()
    assert post(TRACE).status_code == 302
    dataset = Dataset.objects.get()
    assert dataset.file.read() == TRACE.encode()
    assert browser.get(reverse("admin:workloads_dataset_change", args=[dataset.pk])).status_code == 200


def test_an_experiment_is_submitted_and_cancelled_through_the_service(browser: Client, owner: User) -> None:
    url = reverse("admin:experiments_experiment_add")
    assert browser.get(url).status_code == 200
    data = {"owner": owner.pk, "spec": yaml.safe_dump(EXPERIMENT | {"repeats": 0})}
    assert "repeats" in browser.post(url, data).content.decode()
    assert not Experiment.objects.exists()
    assert browser.post(url, data | {"spec": yaml.safe_dump(EXPERIMENT)}).status_code == 302
    experiment = Experiment.objects.get()
    assert browser.get(reverse("admin:experiments_experiment_change", args=[experiment.pk])).status_code == 200
    act(browser, "experiments_experiment", "cancel", experiment.pk)
    experiment.refresh_from_db()
    assert experiment.status == Experiment.Status.CANCELLED
    assert Run.objects.filter(state=State.CANCELLED).count() == 4


def test_a_worker_is_drained(browser: Client, db: None) -> None:
    register_worker(name="cpu@a", host="a", pid=1, device_kind="cpu", device="a/cpu:0")
    act(browser, "fleet_worker", "drain", "cpu@a")
    assert Worker.objects.get().draining
    act(browser, "fleet_worker", "resume", "cpu@a")
    assert not Worker.objects.get().draining


def test_a_name_in_use_is_a_form_error(browser: Client, owner: User) -> None:
    create_policy(owner=owner, name="p", spec={"policy": "static"})
    data = {"name": "p", "owner": owner.pk, "spec": "policy: static"}
    answer = browser.post(reverse("admin:policies_policy_add"), data)
    assert answer.status_code == 200
    assert Policy.objects.count() == 1
