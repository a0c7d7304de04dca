"""The recipe of docs/servers.md from the browser to the verdict, on a real vLLM that the worker launches on the CPU.

Probe, prediction written down, the paired sweep that confirms or refutes it, the longest gap named; then arms that are
the same on one server at an endpoint. Allow 35 minutes on a quiet machine of two cores, most of it for the starts of
vLLM, which imports itself in three processes one after another; what came of it is printed (``pytest -s``)
and, where ``HEADWAY_REPORT`` names a file, written there as JSON piece by piece. Who wins, and by how much, is the
machine's to say: the test holds how it is said. ``HEADWAY_VLLM_REPEATS`` (5) are pairs of runs at each of four loads:
two are the fewest that have an interval, five the fewest that a verdict accepts by.
"""

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_runner.server.adapters.flags import to_flags
from gpu_runner.server.launch.launcher import Launched
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.launch import LaunchTemplate
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.yamltext import dump_yaml
from tests.server.real_vllm import PYTHON, write_launch_file
from tests.stack.conftest import Stack
from tests.stack.visitor import Visitor

pytestmark = [
    pytest.mark.stack,
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="HEADWAY_VLLM_PYTHON names no vLLM"),
    pytest.mark.timeout(3600),
]
REPEATS = int(os.environ.get("HEADWAY_VLLM_REPEATS", "5"))
WORKLOAD: dict[str, Any] = {
    "arrivals": {"poisson": {"rate_rps": 4}},
    "lengths": {"prompt": {"uniform": {"low": 64, "high": 512}}, "output": {"uniform": {"low": 8, "high": 32}}},
    "requests": 80,
    "tiers": {"default": {"ttft_ms": 500}},
}
WIDE, NARROW = "budget-1024", "budget-32"
ARMS = {
    name: {"policy": "vllm_v1", "batch": {"token_budget": budget, "size": 16}, "cache": {"block_size": 32}}
    for name, budget in ((WIDE, 1024), (NARROW, 32))
}
# Client, worker and pages share the cores with what serves. The client is on time all the same where it may run in real
# time; where it may not, such runs become void by the hundreds of milliseconds that it waits for a core. A few requests
# a second are no load for it, so it is told its one process, which spares a self-test at each of the runs.
CLIENT: dict[str, Any] = {"client": {"late_ms": 50, "self_test_s": 0, "processes": 1}}
SERVED = {"server": {"launch": "cpu", **CLIENT}}
PILOT_LOADS = [2**power for power in range(-1, 6)]


@pytest.fixture
def visitor(tmp_path: Path) -> Iterator[Visitor]:
    stack = Stack(tmp_path / "home", HEADWAY_LAUNCH_FILE=str(write_launch_file(tmp_path / "launch.yaml")))
    try:
        stack.wait_ready()
        with Visitor.of(stack.port, stack.said()) as signed_in:
            yield signed_in
        assert stack.stop() == 0
    finally:
        stack.clear()


def submitted(visitor: Visitor, path: str, data: dict[str, Any]) -> str:
    """What a person submits in the YAML view of a form; the id of what was made."""
    answer = visitor.submit(path, mode="yaml", yaml=dump_yaml(data), do="save")
    assert answer.status_code == 302, answer.text
    return answer.headers["Location"].strip("/").rpartition("/")[2]


def probed(visitor: Visitor) -> dict[str, Any]:
    """The profile that a probe of the launched server leaves among the fleet's."""
    form = {"kind": "launch", "where": "cpu", "name": "small on cpu", "length": "quick", "policy": "vllm_v1",
            "batch.token_budget": "1024", "batch.size": "16", "cache.block_size": "32"}  # fmt: skip
    token = visitor.pages.cookies["csrftoken"]
    queued = visitor.pages.post("/fleet/probe/", data={**form, "csrfmiddlewaretoken": token})
    run = visitor.wait_run(
        queued.headers["Location"].strip("/").rpartition("/")[2], "succeeded", "failed", within_s=900
    )
    assert run["state"] == "succeeded", run["reason"]
    (profile,) = [row["profile"] for row in visitor.rest.get("/profiles")["results"] if row["name"] == "small on cpu"]
    return dict(profile)


def modelled_capacities(visitor: Visitor) -> list[float]:
    """What the model says that both arms carry, the lower first, by a pilot from which loads are chosen."""
    pilot = {
        "name": "pilot", "workload": WORKLOAD, "target": {"modelled": {"profile": "small on cpu"}}, "arms": ARMS,
        "baseline": WIDE, "repeats": 1, "sweep": {"loads": PILOT_LOADS},
    }  # fmt: skip
    ended = visitor.wait_experiment(submitted(visitor, "/experiments/new/", pilot), within_s=400)
    (sweep,) = ended["verdict"]["sweeps"]
    return sorted(arm["capacity"] for arm in sweep["arms"])


@contextmanager
def own_server(folder: Path) -> Iterator[str]:
    """The address of a server that stands by itself, as a user's own does."""
    template = json.loads(write_launch_file(folder / "own.yaml").read_text())["templates"]["cpu"]
    flags = to_flags(resolve(PolicySpec.model_validate(ARMS[WIDE])), "vllm")
    launched = Launched(LaunchTemplate.model_validate(template), flags.arguments, folder / "own.log")
    try:
        launched.start(lambda: False)
        yield launched.url
    finally:
        launched.close()


def wait_study(visitor: Visitor, study: str, *, within_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + within_s
    while (found := visitor.rest.get(f"/studies/{study}"))["status"] == "running":
        assert time.monotonic() < deadline, found["stages"]
        time.sleep(2)
    return dict(found)


def longest_gaps(visitor: Visitor, experiment: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Of each arm, what the longest gaps of its requests were named by."""
    found: dict[str, dict[str, int]] = {}
    for row in experiment["runs"]:
        summary = visitor.run(row["id"])["summary"]
        counts = found.setdefault(summary["arm"], {})
        for cause, count in summary["longest_gap_causes"].items():
            counts[cause] = counts.get(cause, 0) + count
    return found


def same_arms(visitor: Visitor, folder: Path, *, rate_rps: float) -> dict[str, Any]:
    """What is said of two arms that are the same, both on one server that an endpoint names."""
    calm = WORKLOAD | {"arrivals": {"poisson": {"rate_rps": round(rate_rps, 2)}}, "requests": 30}
    same = {
        "name": "a against a", "workload": calm, "target": {"server": {**CLIENT, "endpoint": "own"}},
        "arms": {"a": ARMS[WIDE], "again": ARMS[WIDE]}, "baseline": "a",
        # A median of 30 requests repeats itself where their 95th percentile does not; one pair of six may be void.
        "goal": {"primary": "e2e_p50_ms", "better_by": "10%"}, "repeats": 6,
    }  # fmt: skip
    with own_server(folder) as url:
        assert visitor.submit("/endpoints/", name="own", url=url).status_code == 302
        judged = visitor.wait_experiment(submitted(visitor, "/experiments/new/", same), within_s=900)
    (comparison,) = judged["verdict"]["comparisons"]
    return dict(comparison)


def test_two_step_budgets_are_predicted_and_measured_from_the_browser(visitor: Visitor, tmp_path: Path) -> None:
    began = time.monotonic()
    said: dict[str, Any] = {}

    def note(what: str, value: Any) -> None:
        said[what] = value
        print(f"[{time.monotonic() - began:6.0f} s] {what}: {json.dumps(value, indent=1)}", flush=True)
        if report := os.environ.get("HEADWAY_REPORT"):
            Path(report).write_text(json.dumps(said, indent=1))

    profile = probed(visitor)
    kept = ("held_out_error_share", "held_out_bias_share", "residual_share", "steps_measured", "kv_blocks", "cost")
    note("profile", {name: profile[name] for name in kept})
    less, more = modelled_capacities(visitor)
    loads = [float(f"{load:.3g}") for load in (0.4 * less, less, math.sqrt(less * more), 1.8 * more)]
    note("loads", loads)  # both arms carry the first and neither the last, says the model, and chance leaves it so

    experiment = {
        "name": "two step budgets", "workload": WORKLOAD, "target": SERVED, "arms": ARMS, "baseline": WIDE,
        "repeats": REPEATS, "sweep": {"loads": loads},
    }  # fmt: skip
    study = submitted(visitor, "/studies/new/predict/", {"profile": "small on cpu", "experiment": experiment})
    ended = wait_study(visitor, study, within_s=2400)
    assert ended["status"] == "ended", ended["reason"]
    predicted, outcome = ended["prediction"]["prediction"], ended["prediction"]["outcome"]
    note("predicted", predicted["sentence"])
    note("measured", outcome["sentence"])
    note("arms, predicted and measured", [arm["sentence"] for arm in outcome["arms"]])
    note("more than the baseline, with interval", {"predicted": predicted["contests"], "measured": outcome["contests"]})
    measured = visitor.rest.get(f"/experiments/{ended['stages'][1]['experiment']}")
    assert predicted["written_at"] <= min(run["created_at"] for run in measured["runs"])
    assert {arm["arm"] for arm in outcome["arms"]} == {WIDE, NARROW}
    assert outcome["winner"] in ("confirmed", "refuted", "undecided")
    gaps = longest_gaps(visitor, measured)
    note("longest gaps named by", gaps)
    assert all(sum(counts.values()) > 0 for counts in gaps.values()) and set(gaps) == {WIDE, NARROW}

    comparison = same_arms(visitor, tmp_path, rate_rps=0.25 * more)
    note("a against a", [comparison["headline"], *(gate["sentence"] for gate in comparison["gates"])])
    assert comparison["decision"] != "accept"
    assert all(gate["label"] != "better" for gate in comparison["gates"] if gate["role"] == "primary")
    note("whole time, s", round(time.monotonic() - began))
