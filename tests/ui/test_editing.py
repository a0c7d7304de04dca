"""Making things in the browser: form and YAML, preview, refusals at the field, clones."""

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from controlplane.experiments.models import Experiment
from controlplane.policies.models import PolicyVersion
from controlplane.runs.models import Run
from controlplane.workloads.models import Dataset, WorkloadVersion
from scheduler_core.spec.yamltext import dump_yaml
from tests.samples import EXPERIMENT, WORKLOAD
from tests.ui.conftest import World
from tests.ui.samples import TRACE

YAML = {"mode": "yaml", "do": "save"}


def errors(response: Any) -> dict[str, str]:
    return {item.where: item.message for item in response.context["editor"].problems}


def test_a_workload_is_made_from_yaml_and_frozen(browser: Client) -> None:
    answer = browser.post("/workloads/new/", {**YAML, "name": "evening", "yaml": dump_yaml(WORKLOAD)})
    made = WorkloadVersion.objects.get()
    assert answer["Location"] == f"/workloads/{made.workload_id}/1/"
    assert (made.plan.requests, made.plan.prompt_tokens) == (20, 160)


def test_a_preview_shows_what_it_offers_and_saves_nothing(browser: Client) -> None:
    answer = browser.post("/workloads/new/", {**YAML, "do": "preview", "name": "x", "yaml": dump_yaml(WORKLOAD)})
    assert answer.status_code == 200
    assert answer.context["preview"]["requests"] == 20
    assert b"requests/s on average" in answer.content
    assert not WorkloadVersion.objects.exists()


def test_an_equal_edit_makes_no_version_and_a_changed_one_the_next(browser: Client, world: World) -> None:
    path = f"/workloads/{world.workload.workload_id}/edit/"
    assert browser.post(path, {**YAML, "yaml": dump_yaml(WORKLOAD)})["Location"].endswith("/1/")
    changed = {**WORKLOAD, "requests": 21}
    assert browser.post(path, {**YAML, "yaml": dump_yaml(changed)})["Location"].endswith("/2/")
    page = browser.get(f"/workloads/{world.workload.workload_id}/2/")
    assert [(item.path, item.was, item.now) for item in page.context["changes"]] == [("requests", "20", "21")]


def test_every_problem_is_named_at_its_field(browser: Client) -> None:
    answer = browser.post("/workloads/new/", {**YAML, "name": "x", "yaml": "profil: azure\nrequests: -1\n"})
    assert answer.status_code == 422
    found = errors(answer)
    assert "did you mean 'profile'?" in found["profil"]
    assert "requests" in found
    assert not WorkloadVersion.objects.exists()


def test_an_unusable_name_is_said_at_the_name(browser: Client) -> None:
    answer = browser.post("/policies/new/", {**YAML, "name": "../x", "yaml": "policy: static"})
    assert answer.status_code == 422
    assert "is not a usable name" in answer.context["name_error"]


def test_what_a_form_cannot_show_keeps_yaml_open(browser: Client) -> None:
    """Going to the form would lose the unknown key: it is pointed out instead."""
    text = "policy: static\nbatch: {sise: 4}\n"
    answer = browser.post("/policies/new/", {"mode": "yaml", "do": "to_form", "yaml": text})
    assert answer.context["editor"].mode == "yaml"
    assert "did you mean 'size'?" in errors(answer)["batch.sise"]
    assert answer.context["editor"].yaml == text


def test_yaml_becomes_a_form_and_back(browser: Client) -> None:
    answer = browser.post(
        "/policies/new/", {"mode": "yaml", "do": "to_form", "yaml": "policy: static\nbatch: {size: 4}"}
    )
    assert answer.context["editor"].mode == "form"
    assert b'name="batch.size" value="4"' in answer.content
    back = browser.post("/policies/new/", {"mode": "form", "do": "to_yaml", "policy": "static", "batch.size": "4"})
    assert back.context["editor"].yaml == "policy: static\nbatch:\n  size: 4\n"


def test_a_setting_that_the_preset_does_not_take_is_refused(browser: Client) -> None:
    text = "policy: static\nbatch: {long_prefill_cap: 5}"
    answer = browser.post("/policies/new/", {**YAML, "name": "x", "yaml": text})
    assert "does not apply to policy 'static'" in errors(answer)["batch.long_prefill_cap"]


def test_a_policy_is_made_from_a_form(browser: Client) -> None:
    data = {"mode": "form", "do": "save", "name": "tight", "policy": "vllm_v1", "batch.token_budget": "256"}
    answer = browser.post("/policies/new/", data)
    made = PolicyVersion.objects.get()
    assert answer["Location"] == f"/policies/{made.policy_id}/1/"
    assert made.resolved["batch"]["token_budget"] == 256


def test_an_experiment_is_submitted_and_queued(browser: Client) -> None:
    answer = browser.post("/experiments/new/", {**YAML, "yaml": dump_yaml(EXPERIMENT)})
    made = Experiment.objects.get()
    assert answer["Location"] == f"/experiments/{made.pk}/"
    assert Run.objects.count() == 4


def test_checking_an_experiment_queues_nothing(browser: Client) -> None:
    answer = browser.post("/experiments/new/", {**YAML, "do": "preview", "yaml": dump_yaml(EXPERIMENT)})
    assert answer.context["checked"]["plan"]["requests"] == 20
    assert not Run.objects.exists()


def test_a_clone_keeps_its_source_and_gets_a_name_of_its_own(browser: Client, world: World) -> None:
    page = browser.get(f"/experiments/new/?from={world.experiment.pk}")
    assert page.context["editor"].data["name"] == "budgets 2"
    text = page.context["editor"].yaml
    browser.post("/experiments/new/", {**YAML, "from": world.experiment.pk, "yaml": text})
    clone = Experiment.objects.get(name="budgets 2")
    assert clone.cloned_from_id == world.experiment.pk
    assert clone.spec == world.experiment.spec | {"name": "budgets 2"}


def test_a_proposed_step_fills_the_form(browser: Client, world: World) -> None:
    page = browser.get(f"/experiments/new/?from={world.experiment.pk}&next=c0.0")
    assert page.context["editor"].data["name"] == "budgets next"


@pytest.mark.parametrize("reference", ["c0.1", "c0.9", "c7.0", "cx.y", "c-1.0", "0.0", "s0.0", "c0", ""])
def test_a_step_that_is_not_there_clones(reference: str, browser: Client, world: World) -> None:
    page = browser.get(f"/experiments/new/?from={world.experiment.pk}&next={reference}")
    assert page.context["editor"].data["name"] == "budgets 2"


def test_an_experiment_starts_from_saved_versions(browser: Client, world: World) -> None:
    page = browser.get(f"/experiments/new/?workload={world.workload.pk}&policy={world.policy.pk}")
    data = page.context["editor"].data
    assert data["workload"] == {"use": world.workload.pk}
    assert data["arms"]["candidate"] == {"use": world.policy.pk}
    data = {**data, "name": "from saved", "repeats": 1}
    browser.post("/experiments/new/", {**YAML, "yaml": dump_yaml(data)})
    made = Experiment.objects.get(name="from saved")
    assert made.workload_version == world.workload
    assert made.arms.get(name="candidate").policy_version == world.policy


def test_the_first_experiment_is_one_button(browser: Client) -> None:
    answer = browser.post("/first/")
    made = Experiment.objects.get()
    assert answer["Location"] == f"/experiments/{made.pk}/"
    assert made.plan.requests == 40


def test_a_trace_is_imported_with_what_its_reader_found(browser: Client) -> None:
    file = SimpleUploadedFile("last week.csv", TRACE)
    data = {"file": file, "format": "csv", "time_unit": "s", "same_instant": "keep"}
    answer = browser.post("/traces/new/", data)
    dataset = Dataset.objects.get()
    assert answer["Location"] == f"/traces/{dataset.pk}/"
    assert dataset.name == "last week"
    page = browser.get(answer["Location"]).content.decode()
    assert "no two rows share a time" in page  # of the two at 1 s, one has no output and is left out
    assert dataset.inspection["zero_output_rows"] == 1


def test_a_log_is_imported_as_a_trace_and_says_where_it_came_from(browser: Client) -> None:
    rows = [{"startTime": n, "prompt_tokens": 5, "completion_tokens": 2} for n in range(3)]
    log = "\n".join(json.dumps(row) for row in [*rows, {"note": "no request"}])
    form = browser.get("/traces/new/").content.decode()
    assert "LiteLLM log (litellm)" in form and 'name="draw_seed"' in form
    file = SimpleUploadedFile("gateway.jsonl", log.encode())
    page = browser.post("/traces/new/", {"file": file, "format": "litellm"}, follow=True).content.decode()
    assert "LiteLLM log: gateway.jsonl" in page and "rows without startTime" in page and "line 4" in page
    refused = browser.post("/traces/new/", {"file": SimpleUploadedFile("g.jsonl", b"{"), "format": "litellm"})
    assert refused.status_code == 422 and "g.jsonl line 1" in refused.content.decode()
    assert Dataset.objects.count() == 1


def test_a_refused_trace_leaves_nothing(browser: Client) -> None:
    file = SimpleUploadedFile("t.csv", b"arrival_s,prompt_tokens,output_tokens\n0,ten,5\n")
    answer = browser.post("/traces/new/", {"file": file, "format": "csv", "time_unit": "s"})
    assert answer.status_code == 422
    assert any("line 2" in item.where or "2" in item.where for item in answer.context["editor"].problems)
    assert not Dataset.objects.exists()


def test_no_file_is_said(browser: Client) -> None:
    answer = browser.post("/traces/new/", {"format": "csv"})
    assert answer.context["file_error"] == "choose a trace file"


def test_notes_are_kept_and_cancelling_ends_every_run(browser: Client, world: World) -> None:
    browser.post(f"/experiments/{world.experiment.pk}/notes/", {"notes": "keep <this>"})
    browser.post(f"/experiments/{world.experiment.pk}/cancel/")
    world.experiment.refresh_from_db()
    assert world.experiment.notes == "keep <this>"
    assert set(Run.objects.exclude(pk=world.run.pk).values_list("state", flat=True)) == {"cancelled"}


def test_a_refused_act_says_why(browser: Client, world: World) -> None:
    page = browser.post(f"/runs/{world.run.pk}/cancel/", follow=True)
    assert b"the run has already ended" in page.content


def test_a_calibration_is_queued(browser: Client) -> None:
    answer = browser.post("/fleet/calibrate/", {"model": "demo-s", "device": "cpu"})
    run = Run.objects.get()
    assert answer["Location"] == f"/runs/{run.pk}/"
    assert run.kind == "calibration"


def test_a_probe_of_a_server_is_queued_with_what_the_form_says_of_it(browser: Client) -> None:
    form = {"kind": "launch", "where": "small", "policy": "vllm_v1", "batch.token_budget": "256", "length": "quick"}
    answer = browser.post("/fleet/probe/", form)
    run = Run.objects.get()
    assert answer["Location"] == f"/runs/{run.pk}/"
    assert (run.kind, run.job["server"]["launch"], run.job["quick"]) == ("calibration", "small", True)
    assert run.job["policy"]["batch"]["token_budget"] == 256
    page = browser.post("/fleet/probe/", {"kind": "endpoint", "where": "nowhere"}, follow=True).content.decode()
    assert "there is no endpoint" in page and Run.objects.count() == 1
