"""Two workers of one installation: the runs of one sweep over a cluster spread over both, and end in one verdict."""

import contextlib
import html
import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from controlplane.embedded import programs
from tests.stack.conftest import ROOT, Stack, wait_for
from tests.stack.processes import environment_of, group_of
from tests.stack.visitor import Visitor

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

LOADS = [5, 20, 80]
REPEATS = 2
ARMS = {name: {"policy": "vllm_v1", "pools": {"layout": "replicas", "route": name}}
        for name in ("round_robin", "least_loaded")}  # fmt: skip
SWEEP: dict[str, Any] = {
    "name": "routers of two replicas",
    "workload": {
        "arrivals": {"poisson": {"rate_rps": 10}},
        "lengths": {"prompt": {"uniform": {"low": 50, "high": 400}}, "output": {"uniform": {"low": 10, "high": 60}}},
        "requests": 200,
        "tiers": {"default": {"ttft_ms": 200}},
    },
    "target": {"modelled": {"noise": True, "topology": {"groups": {"replica": {"count": 2}}}}},
    "arms": ARMS,
    "baseline": "round_robin",
    "repeats": REPEATS,
    "sweep": {"loads": LOADS},
}  # fmt: skip


@contextlib.contextmanager
def second_worker(stack: Stack, folder: Path) -> Iterator[None]:
    """Another worker like the stack's own, with a device of its own, for the time of the context."""
    env = environment_of(group_of(stack, "celery")) | {"HEADWAY_DEVICE_INDEX": "1"}
    argv = [*programs.worker("cpu").argv, "--hostname", "second@%h"]
    log = folder / "second.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_for(lambda: " ready." in log.read_text() or process.poll() is not None, "the second worker is ready", 90)
        assert process.poll() is None, log.read_text()
        yield
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def visitor(tmp_path: Path) -> Iterator[Visitor]:
    stack = Stack(tmp_path / "home")
    try:
        stack.wait_ready()
        with second_worker(stack, tmp_path), Visitor.of(stack.port, stack.said()) as signed_in:
            yield signed_in
        assert stack.stop() == 0
    finally:
        stack.clear()


def test_runs_of_a_sweep_over_a_cluster_spread_over_the_workers_and_end_in_one_verdict(visitor: Visitor) -> None:
    def alive() -> list[dict[str, Any]]:
        return [worker for worker in visitor.rest.get("/workers") if worker["alive"]]

    wait_for(lambda: len(alive()) == 2, "both workers are registered", 30)
    workers = alive()
    assert len({worker["pid"] for worker in workers}) == len({worker["device"] for worker in workers}) == 2

    submitted = visitor.rest.post("/experiments", SWEEP)
    ended = visitor.wait_experiment(submitted["id"], within_s=240)
    assert ended["status"] == "decided", ended["reason"]
    runs = [visitor.run(run["id"]) for run in ended["runs"]]
    assert len(runs) == len(ARMS) * len(LOADS) * REPEATS
    assert [(run["state"], run["attempt"]) for run in runs] == [("succeeded", 1)] * len(runs)
    attempts = [attempt for run in runs for attempt in run["attempts"]]
    assert {attempt["worker"] for attempt in attempts} == {worker["name"] for worker in workers}
    assert any(_at_once(*pair) for pair in combinations(attempts, 2))

    (verdict,) = ended["verdict"]["sweeps"]
    assert (verdict["loads"], verdict["repeats"], verdict["baseline"]) == (LOADS, REPEATS, "round_robin")
    assert {arm["arm"] for arm in verdict["arms"]} == set(ARMS)
    assert html.escape(verdict["headline"]) in visitor.pages.get(f"/experiments/{submitted['id']}/").text


def _at_once(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two attempts were executed at the same time, by different workers."""
    (began, ended), (began_too, ended_too) = (
        (datetime.fromisoformat(item["started_at"]), datetime.fromisoformat(item["ended_at"])) for item in (one, other)
    )
    return one["worker"] != other["worker"] and began < ended_too and began_too < ended
