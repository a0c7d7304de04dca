"""A server of the user's at work in the whole product: launched by the worker, probed, predicted, and measured.

The server is the mock, standing in a launch template with its own flags; its steps take known times.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_runner.server.mock.behaviour import Behaviour, Scheduled
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Affine, Profile
from tests.stack.conftest import ROOT, Stack
from tests.stack.visitor import Visitor

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

STEPS = Profile(
    name="true", model="m", device="d", dtype="none", residual_share=0, drift_share=0, held_out_error_share=0,
    cost=Affine(base_ns=12e6, prefill_token_ns=60_000, decode_request_ns=400_000, context_token_ns=1_500),
    domain={}, steps_measured=1, measured_on={}, model_length=1024,
)  # fmt: skip
# A prompt of 200 tokens is a part of a step of `wide`, and two of `narrow`: one carries several times the other.
ARMS = {
    name: {"policy": "vllm_v1", "batch": {"token_budget": budget, "size": 48}}
    for name, budget in (("wide", 512), ("narrow", 112))
}
EXPERIMENT: dict[str, Any] = {
    "name": "two budgets",
    "workload": {
        "arrivals": {"constant": {"rate_rps": 10}},
        "lengths": {"prompt": {"fixed": 200}, "output": {"fixed": 6}},
        "requests": 40,
        "tiers": {"default": {"ttft_ms": 400}},
    },
    "target": {"server": {"launch": "mine", "client": {"late_ms": 10_000, "self_test_s": 0}}},
    "arms": ARMS,
    "baseline": "wide",
    "repeats": 2,
    "sweep": {"loads": [10, 40, 250]},
}  # fmt: skip


def launch_file(folder: Path) -> Path:
    """Templates with the mock as a vLLM that tells its configuration."""
    policy = resolve(PolicySpec.model_validate({"policy": "vllm_v1"}))
    behaviour = Behaviour(dev_mode=True, scheduled=Scheduled(policy=policy, profile=STEPS, kv_blocks=2000))
    (folder / "behaviour.json").write_text(behaviour.model_dump_json())
    command = [sys.executable, "-m", "gpu_runner.server.mock", str(folder / "behaviour.json"), "--port", "{port}"]
    template = {"server": "vllm", "command": command, "env": {"PYTHONPATH": str(ROOT)}, "ready_s": 120}
    path = folder / "launch.yaml"
    path.write_text(json.dumps({"templates": {"mine": template}}))
    return path


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    folder = tmp_path_factory.mktemp("servers")
    probe = {"HEADWAY_QUICK_PROBE_S": "15"}  # steps of tens of milliseconds: three rounds of all kinds fit
    stack = Stack(folder / "home", HEADWAY_LAUNCH_FILE=str(launch_file(folder)), **probe)
    try:
        stack.wait_ready()
        with Visitor.of(stack.port, stack.said()) as signed_in:
            yield signed_in
        assert stack.stop() == 0
    finally:
        stack.clear()


def wait_study(visitor: Visitor, study: str, *, within_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + within_s
    while True:
        found: dict[str, Any] = visitor.rest.get(f"/studies/{study}")
        if found["status"] != "running":
            return found
        assert time.monotonic() < deadline, (found["reason"], found["stages"])
        time.sleep(1)


def test_a_launched_server_is_probed_predicted_and_measured(visitor: Visitor) -> None:
    form = {
        "kind": "launch", "where": "mine", "name": "of mine", "length": "quick", "policy": "vllm_v1",
        "batch.token_budget": "512", "batch.size": "48",
    }  # fmt: skip
    token = visitor.pages.cookies["csrftoken"]
    queued = visitor.pages.post("/fleet/probe/", data={**form, "csrfmiddlewaretoken": token})
    run_id = queued.headers["Location"].strip("/").rpartition("/")[2]
    probed = visitor.wait_run(run_id, "succeeded", within_s=300)
    assert "steps left out of the fit are predicted to" in probed["reason"]
    (profile,) = [row["profile"] for row in visitor.rest.get("/profiles")["results"] if row["name"] == "of mine"]
    assert profile["kv_blocks"] == 2000 and profile["measured_on"]["token_budget"] == 512
    assert "of mine" in visitor.pages.get("/fleet/").text

    study = visitor.rest.post("/studies/predict", {"profile": "of mine", "experiment": EXPERIMENT})
    ended = wait_study(visitor, study["id"], within_s=500)
    assert ended["status"] == "ended", ended["reason"]
    predicted, outcome = ended["prediction"]["prediction"], ended["prediction"]["outcome"]
    assert predicted["sentence"].endswith("wide carries most")
    measured = visitor.rest.get(f"/experiments/{ended['stages'][1]['experiment']}")
    assert predicted["written_at"] <= min(run["created_at"] for run in measured["runs"])
    # On a busy test machine the mock is later than its clock says, both arms alike: who wins stays.
    assert outcome["winner"] == "confirmed" and {arm["arm"] for arm in outcome["arms"]} == {"wide", "narrow"}
    shown = visitor.run(measured["runs"][0]["id"])["summary"]
    assert shown["deployment"]["server"] == "vllm" and shown["metrics"]["model_load_ms"]["value"] > 0
    page = visitor.pages.get(f"/studies/{study['id']}/").text
    assert "before anything was measured" in page and "Confirmed" in page
