"""What each resource answers when all is well."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from controlplane.accounts.models import User
from controlplane.experiments.models import Experiment
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from tests.api.conftest import PROFILE, TRACE, Api, World
from tests.samples import EXPERIMENT, POLICY, WORKLOAD


def test_submitting_answers_201_with_the_address_and_every_run(api: Api) -> None:
    response: Any = api.post("/experiments", EXPERIMENT)
    assert response.status_code == 201
    data = response.json()
    assert response["Location"] == data["url"] == f"http://testserver/api/v1/experiments/{data['id']}"
    assert sorted((run["repeat"], run["arm"], run["state"]) for run in data["runs"]) == [
        (0, "baseline", "queued"),
        (0, "chunked", "queued"),
        (1, "baseline", "queued"),
        (1, "chunked", "queued"),
    ]  # which arm goes first in a repeat is drawn
    assert data["status"] == "queued"
    assert data["verdict"] is None
    assert api.get(data["url"].removeprefix("http://testserver")).json() == data


def test_a_dry_run_changes_nothing_and_says_what_would_be_run(api: Api) -> None:
    data = api.post("/experiments/check", EXPERIMENT).json()
    assert len(data["runs"]) == 4
    assert data["plan"]["requests"] == 20
    assert not Experiment.objects.exists()


def test_a_clone_remembers_its_original(world: World, teammate: User, by_token: Callable[..., Api]) -> None:
    address = f"/experiments/{world.experiment.pk}/clone"
    data = by_token(teammate).post(address, {"changes": {"name": "again", "repeats": 1}}).json()
    assert (data["name"], data["cloned_from"], data["owner"]) == ("again", world.experiment.pk, "tom")
    assert len(data["runs"]) == 2
    assert data["plan_digest"] == world.experiment.plan_id


def test_lists_filter_and_page_without_gap_or_double(world: World, api: Api) -> None:
    for _ in range(6):
        api.post("/experiments", {**EXPERIMENT, "repeats": 1})
    seen: list[str] = []
    address = "/experiments?limit=3"
    while address:
        page = api.get(address).json()
        assert len(page["results"]) <= 3
        seen += [row["id"] for row in page["results"]]
        address = (page["next"] or "").removeprefix("http://testserver")
    assert len(seen) == len(set(seen)) == 7
    api.post(f"/experiments/{world.experiment.pk}/cancel")
    found = api.get("/experiments?status=cancelled").json()["results"]
    assert [row["id"] for row in found] == [world.experiment.pk]
    assert api.get("/experiments?owner=tom").json()["results"] == []
    runs = api.get(f"/runs?experiment={world.experiment.pk}&state=cancelled").json()["results"]
    assert len(runs) == 4


LISTS = ("/experiments", "/runs", "/workloads", "/policies", "/datasets", "/profiles", "/studies")


@pytest.mark.parametrize("address", LISTS)
def test_a_list_costs_the_same_queries_however_long(
    world: World, api: Api, address: str, django_assert_max_num_queries: Any
) -> None:
    """Token, throttle and audit included; the count must not grow with rows."""
    for _ in range(3):
        api.post("/experiments", {**EXPERIMENT, "repeats": 1})
    with django_assert_max_num_queries(6):
        assert api.get(address).status_code == 200


def test_cancelling_a_run_is_previewed_then_done(world: World, api: Api) -> None:
    address = f"/runs/{world.run.pk}/cancel"
    preview = api.get(address).json()
    assert preview["possible"] is True
    assert "never starts" in preview["effect"]
    assert Run.objects.get(pk=world.run.pk).state == State.QUEUED
    response: Any = api.post(address, {"reason": "wrong model"})
    assert response.status_code == 202
    assert response.json()["state"] == "cancelled"
    detail = api.get(f"/runs/{world.run.pk}").json()
    assert detail["transitions"][-1]["reason"] == "wrong model"
    assert api.get(address).json()["possible"] is False
    again = api.post(f"/runs/{world.run.pk}/retry").json()
    assert (again["state"], again["attempt"]) == ("queued", 2)


def test_samples_are_read_on_from_a_number(world: World, api: Api) -> None:
    address = f"/runs/{world.run.pk}/samples"
    first = api.get(f"{address}?limit=3").json()
    assert [sample["seq"] for sample in first["samples"]] == [1, 2, 3]
    assert (first["last_seq"], first["newest_seq"]) == (3, 7)
    rest = api.get(f"{address}?after=3").json()
    assert [sample["seq"] for sample in rest["samples"]] == [4, 5, 6, 7]
    none = api.get(f"{address}?after=7").json()
    assert (none["samples"], none["last_seq"]) == ([], 7)
    assert api.get(f"{address}?attempt=9").json()["samples"] == []


def test_files_come_as_attachments_that_no_browser_runs(world: World, api: Api) -> None:
    for path in (
        f"/runs/{world.run.pk}/attempts/1/files/summary.json",
        f"/runs/{world.run.pk}/attempts/1/segments/1",
        f"/datasets/{world.dataset.pk}/file",
    ):
        response: Any = api.get(path)
        assert response.status_code == 200
        assert response["Content-Disposition"].startswith("attachment")
        assert response["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in response["Content-Security-Policy"]
        assert response["Content-Type"] == "application/octet-stream"
        assert b"".join(response.streaming_content) in (b"{}", TRACE)


@pytest.mark.parametrize("name", ["../../key", "..%2f..%2fkey", "%252e%252e%252fkey", "summary.json;x", "a%00b"])
def test_no_name_leads_out_of_a_run(world: World, api: Api, name: str) -> None:
    assert api.get(f"/runs/{world.run.pk}/attempts/1/files/{name}").status_code == 404


def test_a_trace_is_inspected_then_imported(api: Api) -> None:
    def fields() -> dict[str, Any]:
        return {"file": SimpleUploadedFile("t.csv", TRACE), "format": "csv", "time_unit": "s"}

    seen = api.upload("/datasets/inspect", fields()).json()
    assert (seen["rows"], seen["prompt_tokens"], seen["output_tokens"], seen["span_s"]) == (3, 60, 18, 1.5)
    assert api.get("/datasets").json()["results"] == []
    response: Any = api.upload("/datasets", fields())
    assert response.status_code == 201
    assert response.json()["name"] == "t.csv"
    assert response.json()["inspection"]["digest"] == seen["digest"]
    spec = {"trace": {"dataset": response.json()["id"], "rate_rps": 2}}
    made = api.post("/workloads", {"name": "mine", "spec": spec}).json()
    assert made["versions"][0]["dataset"] == response.json()["id"]


def test_logs_and_clients_are_imported_by_format(api: Api) -> None:
    row = {"startTime": 1.0, "prompt_tokens": 5, "completion_tokens": 2}
    log = SimpleUploadedFile("g.jsonl", json.dumps(row).encode())
    seen: Any = api.upload("/datasets/inspect", {"file": log, "format": "litellm"})
    assert seen.json()["origin"]["title"] == "LiteLLM log" and seen.json()["rows"] == 1
    windows = {"0": {"input_tokens": "{10: 1.0}", "output_tokens": "{5: 1.0}"}}
    files = {
        "file": SimpleUploadedFile("a-trace.csv", b"0,5,1,Gamma,1.0,0.2\n"),
        "more": [SimpleUploadedFile("a-dataset.json", json.dumps(windows).encode())],
    }
    made: Any = api.upload("/datasets", {**files, "format": "servegen", "for_s": 10})
    assert made.status_code == 201 and made.json()["inspection"]["tenants"] == {"a": made.json()["inspection"]["rows"]}


def test_a_broken_trace_is_refused_whole_with_its_line(api: Api) -> None:
    broken = TRACE + b"2.0,many,1\n"
    fields = {"file": SimpleUploadedFile("t.csv", broken), "format": "csv", "time_unit": "s"}
    response: Any = api.upload("/datasets", fields)
    assert response.status_code == 400
    assert any("line 5" in item["where"] for item in response.json()["problems"])
    assert api.get("/datasets").json()["results"] == []


def test_workloads_and_policies_grow_by_versions(world: World, api: Api) -> None:
    address = f"/workloads/{world.workload.pk}/versions"
    same: Any = api.post(address, {"spec": WORKLOAD})
    assert same.json()["number"] == 1
    response: Any = api.post(address, {"spec": {**WORKLOAD, "requests": 30}})
    assert response.json()["number"] == 2
    plan = api.get(f"{address}/2/plan").json()
    assert plan["requests"] == 30
    assert plan["digest"] == response.json()["plan_digest"]
    policies = f"/policies/{world.policy.pk}/versions"
    assert api.post(policies, {"spec": {**POLICY, "batch": {"token_budget": 256}}}).json()["number"] == 2
    assert api.get(f"{policies}/2").json()["resolved"]["batch"]["token_budget"] == 256
    assert api.get(f"/policies/{world.policy.pk}").json()["versions"][0]["number"] == 2


def test_an_experiment_may_name_what_is_saved(world: World, api: Api) -> None:
    spec = {
        **EXPERIMENT,
        "workload": {"use": world.workload.versions.get().pk},
        "arms": {"baseline": {"policy": "static"}, "saved": {"use": world.policy.versions.get().pk}},
    }
    response: Any = api.post("/experiments", spec)
    assert response.status_code == 201, response.content
    assert response.json()["plan_digest"] == world.experiment.plan_id


def test_a_preview_freezes_without_keeping(api: Api) -> None:
    seen = api.post("/workloads/preview", {"spec": WORKLOAD}).json()
    assert seen["plan_digest"]
    assert api.get("/workloads").json()["results"] == []


def test_profiles_are_uploaded_and_calibrations_queued(api: Api) -> None:
    response: Any = api.post("/profiles", PROFILE)
    assert response.status_code == 201
    assert response.json()["profile"]["cost"]["base_ns"] == 1e6
    run: Any = api.post("/profiles/calibrate", {"name": "mine", "quick": True})
    assert run.status_code == 201
    assert run.json()["kind"] == "calibration"
    bad: Any = api.post("/profiles/calibrate", {"name": "mine", "target": {"device": "tpu"}})
    assert bad.status_code == 400
    asked = {"name": "mine", "server": {"launch": "small"}, "policy": {"policy": "vllm_v1"}}
    probe: Any = api.post("/profiles/calibrate", asked)
    assert (probe.status_code, probe.json()["title"]) == (201, "Calibration mine: small")
    both: Any = api.post("/profiles/calibrate", {**asked, "target": {}})
    assert both.status_code == 400


def test_the_installation_describes_itself(world: World, api: Api, stranger: Api) -> None:
    assert stranger.get("/health").json() == {"status": "ok"}
    me = api.get("/me").json()
    assert me["username"] == "olga"
    assert me["token"]["read_only"] is False
    assert "digest" not in me["token"]
    metrics = {row["name"]: row for row in api.get("/metrics").json()}
    assert metrics["ttft_p95_ms"]["better"] == "lower"
    assert {"experiment", "workload", "policy", "verdict"} <= set(api.get("/schemas").json())
    schema = api.get("/schemas/experiment").json()
    assert "arms" in schema["properties"]
    assert api.get("/schemas/bogus").status_code == 404
    assert {preset["name"] for preset in api.get("/policies/presets").json()} >= {"static", "vllm_v1"}
    assert api.get("/workers").json()[0]["alive"] is True
    assert api.get("/openapi").json()["openapi"].startswith("3.1")


def test_a_detail_carries_a_tag_and_an_unchanged_one_is_304(world: World, api: Api) -> None:
    address = f"/experiments/{world.experiment.pk}"
    first: Any = api.get(address)
    again: Any = api.get(address, headers={"If-None-Match": first["ETag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert again["ETag"] == first["ETag"]
    api.post(f"{address}/cancel")
    assert api.get(address, headers={"If-None-Match": first["ETag"]}).status_code == 200


def test_both_spellings_of_an_address_work(world: World, api: Api) -> None:
    assert api.get(f"/runs/{world.run.pk}/").json()["id"] == world.run.pk
    assert api.post("/experiments/", EXPERIMENT).status_code == 201


def test_notes_and_archiving_guarded_against_lost_updates(world: World, api: Api) -> None:
    address = f"/experiments/{world.experiment.pk}"
    seen = api.get(address)
    first = api.call("PATCH", address, {"notes": "mine"}, headers={"If-Match": seen["ETag"]})
    assert first.json()["notes"] == "mine"
    late = api.call("PATCH", address, {"notes": "yours"}, headers={"If-Match": seen["ETag"]})
    assert (late.status_code, late.json()["code"]) == (412, "changed_meanwhile")
    assert api.get(address).json()["notes"] == "mine"
    assert api.call("PATCH", address, {"archived": True}).status_code == 409
    api.post(f"{address}/cancel")
    assert api.call("PATCH", address, {"archived": True}, headers={"If-Match": "*"}).status_code == 200
    assert api.get("/experiments").json()["results"] == []
    assert len(api.get("/experiments?archived=true").json()["results"]) == 1
    assert api.call("PATCH", f"/policies/{world.policy.pk}", {"archived": True}).json()["archived_at"]


def test_a_trace_in_use_stays(world: World, api: Api) -> None:
    spec = {"trace": {"dataset": world.dataset.pk}}
    made = api.post("/workloads", {"name": "plays it", "spec": spec}).json()
    address = f"/datasets/{world.dataset.pk}"
    assert api.call("DELETE", address).status_code == 409
    assert made["versions"][0]["dataset"] == world.dataset.pk
    from controlplane.workloads.models import Workload

    Workload.objects.filter(pk=made["id"]).delete()
    assert api.call("DELETE", address).status_code == 204
    assert api.get(address).status_code == 404


def test_a_run_that_no_worker_holds_cannot_be_closed_by_force(world: World, api: Api) -> None:
    assert api.post(f"/runs/{world.run.pk}/close").status_code == 409


def test_a_guided_plan_is_followed_stage_by_stage(api: Api) -> None:
    asked = {"name": "tuning", "workload": WORKLOAD, "target": {"torch": {"device": "cpu"}}}
    made: Any = api.post("/studies/guided", asked)
    assert made.status_code == 201
    data = made.json()
    assert (data["kind"], data["status"], data["spec"]["start"]["policy"]) == ("guided", "running", "static")
    assert [(stage["number"], stage["title"], stage["status"]) for stage in data["stages"]] == [
        (0, "step selection", "queued")
    ]
    assert api.get(data["stages"][0]["url"].removeprefix("http://testserver")).json()["name"].startswith("tuning 1")
    assert [row["id"] for row in api.get("/studies?kind=guided&status=running").json()["results"]] == [data["id"]]
    assert api.post(f"/studies/{data['id']}/cancel").json()["status"] == "cancelled"
    assert api.post(f"/studies/{data['id']}/cancel").status_code == 409
    assert api.post(f"/studies/{data['id']}/resume").json()["status"] == "running"


def test_a_search_is_queued_as_a_run(api: Api) -> None:
    asked = {"name": "budgets", "workload": WORKLOAD, "space": {"batch.size": {"values": [4, 8]}}}
    data = api.post("/studies/search", asked).json()
    assert (data["kind"], data["result"], data["stages"]) == ("search", None, [])
    assert api.get(f"/runs/{data['run']}").json()["kind"] == "search"
    wrong: Any = api.post("/studies/search", {**asked, "space": {"batch.sise": {"values": [1]}}})
    assert wrong.status_code == 400 and "batch.sise" in wrong.content.decode()


def test_a_prediction_begins_with_its_sweep_on_the_model(api: Api) -> None:
    experiment = {
        "name": "budgets", "workload": WORKLOAD, "sweep": {"loads": [1, 2, 4]},
        "target": {"server": {"launch": "small"}},
        "arms": {"wide": {"policy": "vllm_v1"}, "narrow": {"policy": "vllm_v1", "batch": {"token_budget": 256}}},
    }  # fmt: skip
    made: Any = api.post("/studies/predict", {"experiment": experiment})
    assert made.status_code == 201
    data = made.json()
    assert (data["kind"], data["prediction"], data["result"]) == ("predict", None, None)
    assert [(stage["title"], stage["status"]) for stage in data["stages"]] == [("prediction", "queued")]
    bad: Any = api.post("/studies/predict", {"experiment": {**experiment, "sweep": None}})
    assert bad.status_code == 400 and bad.json()["problems"][0]["where"] == "experiment"
