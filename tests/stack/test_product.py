"""The whole product at work: real servers, a real worker, real runs on both targets.

The workloads are small (ten requests, the tiny shape), so that a run lasts a second or two.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.evidence.tables.tables import read_table
from scheduler_core.verdict.comparable import unequal_outputs
from scheduler_core.verdict.outputs import read_outputs
from tests.stack.conftest import Stack, wait_for
from tests.stack.processes import alive, command_line, group_of, members, of_home
from tests.stack.trace_files import GENERATED, UNPUBLISHED, TraceFile, public
from tests.stack.visitor import RUN_ENDED, Visitor

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

TARGETS: dict[str, dict[str, Any]] = {
    "modelled": {"modelled": {"kv_blocks": 256}},
    "torch": {"torch": {"model": "tiny", "device": "cpu", "threads": 1, "kv_blocks": 256}},
}
ARMS = {
    "baseline": {"policy": "static", "batch": {"size": 4, "max_wait_ms": 200}},
    "continuous": {"policy": "vllm_v1", "batch": {"token_budget": 64}},
}
LONG = {
    "name": "long enough to be killed",
    "workload": {
        "arrivals": {"constant": {"rate_rps": 4}},
        "lengths": {"prompt": {"fixed": 24}, "output": {"fixed": 8}},
        "requests": 32,
    },
    "target": TARGETS["torch"],
    "arms": {"only": {"policy": "vllm_v1", "batch": {"token_budget": 64}}},
    "repeats": 1,
}
RUN_LIMIT_S = 120.0
PUBLIC = Path(os.environ.get("HEADWAY_TRACES", ""))
# Where public slices are at hand they stand for their kinds: every kind is played, none twice.
PLAYED = UNPUBLISHED if os.environ.get("HEADWAY_TRACES") else GENERATED


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for the tests here, with scratch and storage on folders that have nothing in common."""
    scratch, storage = tmp_path_factory.mktemp("scratch"), tmp_path_factory.mktemp("storage")
    started = Stack(
        tmp_path_factory.mktemp("product") / "home", HEADWAY_SCRATCH=str(scratch), HEADWAY_STORAGE=str(storage)
    )
    try:
        yield started.wait_ready()
        assert started.stop() == 0
        assert started.alive() == []
    finally:
        started.clear()


@pytest.fixture(scope="module")
def visitor(product: Stack) -> Iterator[Visitor]:
    with Visitor.of(product.port, product.said()) as signed_in:
        yield signed_in


def import_and_submit(visitor: Visitor, trace: TraceFile, folder: Path) -> dict[str, str]:
    """Import a trace both ways, and submit it from one of them to each target; ids of experiments by target."""
    by_rest = visitor.import_by_rest(trace.name, trace.content, trace.declared, folder)
    by_form = visitor.import_by_form(trace.name, trace.content, trace.declared)
    assert by_rest["format"] == trace.format
    assert by_rest["inspection"] == visitor.rest.get(f"/datasets/{by_form}")["inspection"]
    submitted = {}
    for (kind, target), dataset in zip(TARGETS.items(), (by_rest["id"], by_form), strict=True):
        spec = {"name": f"{kind} {trace.format}", "workload": {"trace": trace.played(dataset)}, "target": target}
        submitted[kind] = visitor.rest.post("/experiments", {**spec, "arms": ARMS, "repeats": 1})["id"]
    return submitted


Played = Callable[[str], dict[str, list[dict[str, Any]]]]


def play_all(visitor: Visitor, traces: list[TraceFile], folder: Path) -> Played:
    """Submit everything at once; the answer waits for a trace's runs, by target."""
    submitted = {trace.name: import_and_submit(visitor, trace, folder) for trace in traces}

    def ended(name: str) -> dict[str, list[dict[str, Any]]]:
        runs = {}
        for kind, experiment_id in submitted[name].items():
            experiment = visitor.wait_experiment(experiment_id, within_s=RUN_LIMIT_S)
            assert experiment["status"] == "decided", experiment["reason"]
            runs[kind] = [visitor.run(run["id"]) for run in experiment["runs"]]
        return runs

    return ended


@pytest.fixture(scope="module")
def generated(visitor: Visitor, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play_all(visitor, PLAYED, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def published(visitor: Visitor, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play_all(visitor, public(PUBLIC), tmp_path_factory.mktemp("files"))


def check_runs(visitor: Visitor, runs: dict[str, list[dict[str, Any]]], requests: int, folder: Path) -> None:
    """What `Shown by` promises of any experiment: the same plan, the same words, nobody lost, no time lost."""
    everything = [run for kind in runs.values() for run in kind]
    assert [run["state"] for run in everything] == ["succeeded"] * 4, [run["reason"] for run in everything]
    summaries = [run["summary"] for run in everything]
    assert len({summary["plan_digest"] for summary in summaries}) == 1
    assert {summary["arm"] for summary in summaries} == set(ARMS)
    for summary in summaries:
        assert summary["offered"] == sum(summary["outcomes"].values()) == summary["outcomes"]["finished"] == requests
        assert summary["audit"]["passed"], summary["audit"]["violations"]
    for kind, limit in (("modelled", lambda e2e: 0.0), ("torch", lambda e2e: max(1.0, e2e / 100))):
        for run in runs[kind]:
            rows = read_table(visitor.artifact(run, "requests.parquet", folder)).to_pylist()
            assert len(rows) == requests
            for row in rows:
                assert abs(row["unattributed_ms"]) <= limit(row["e2e_ms"]), (kind, row)
    first, second = (read_outputs(visitor.artifact(run, "outputs.parquet", folder)) for run in runs["torch"])
    assert set(first) == set(second) and len(first) == requests
    assert unequal_outputs(first, second) == []


@pytest.mark.parametrize("trace", PLAYED, ids=lambda trace: trace.name)
def test_a_trace_of_every_kind_comes_in_both_ways_and_runs_on_both_targets(
    trace: TraceFile, visitor: Visitor, generated: Played, tmp_path: Path
) -> None:
    check_runs(visitor, generated(trace.name), trace.requests, tmp_path)


@pytest.mark.traces
@pytest.mark.skipif(not os.environ.get("HEADWAY_TRACES"), reason="HEADWAY_TRACES names no folder of public slices")
def test_public_traces_come_in_both_ways_and_run_on_both_targets(
    visitor: Visitor, published: Played, tmp_path: Path
) -> None:
    for trace in public(PUBLIC):
        check_runs(visitor, published(trace.name), trace.requests, tmp_path)


# --- processes ------------------------------------------------------------------------------------------------------


def run_group(product: Stack) -> list[int]:
    """The processes of the run that is being executed: launcher and ``python -m gpu_runner.run``."""
    pids = members(group_of(product, "launcher.py"))
    assert any("gpu_runner.run" in command_line(pid) for pid in pids)
    return pids


def loads_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture
def running(visitor: Visitor, product: Stack) -> dict[str, Any]:
    """A torch run that is being served, some requests in."""
    wait_for(lambda: not visitor.rest.get("/runs", state="queued", limit=1)["results"], "the queue is empty", 60)
    run_id = visitor.rest.post("/experiments", LONG)["runs"][0]["id"]
    visitor.wait_run(run_id, "running", within_s=60)
    wait_for(lambda: visitor.run(run_id)["done"] >= 2, "two requests are done", 60)
    return visitor.run(run_id)


def test_only_the_run_itself_loads_torch_and_no_folder_is_shared(
    running: dict[str, Any], visitor: Visitor, product: Stack
) -> None:
    """Looked at while a run is being served, when whoever would load it has loaded it."""
    run_pids = run_group(product)
    assert any(loads_torch(pid) for pid in run_pids)
    servers = [pid for pgid in product.registered() for pid in members(pgid) if pid not in run_pids]
    assert len(servers) >= 5  # queue server, web, dispatch, Celery's main process and its child
    assert [command_line(pid) for pid in [product.process.pid, *servers] if loads_torch(pid)] == []

    ended = visitor.wait_run(running["id"], *RUN_ENDED, within_s=RUN_LIMIT_S)
    assert ended["state"] == "succeeded"
    scratch, storage = Path(product.more["HEADWAY_SCRATCH"]), Path(product.more["HEADWAY_STORAGE"])
    wait_for(lambda: list(scratch.iterdir()) == [], "scratch is cleared")
    stored = {path.name for path in storage.rglob("*") if path.is_file() and running["id"] in str(path)}
    assert {"requests.parquet", "steps.parquet", "outputs.parquet", "summary.json"} <= stored
    assert not (product.home / "scratch").exists() and not (product.home / "storage").exists()


def check_retried(visitor: Visitor, before: dict[str, Any], killed_at: float) -> None:
    """The run left ``running`` in time, is played again to success, and what it had stored is still there."""
    run_id = before["id"]
    left = visitor.wait_run(run_id, "queued", "dispatched", "starting", "running", within_s=30, attempt=2)
    assert time.monotonic() - killed_at <= 30
    assert left["attempts"][0]["outcome"] in ("released", "lost")
    ended = visitor.wait_run(run_id, *RUN_ENDED, within_s=RUN_LIMIT_S)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 2), ended["reason"]
    assert ended["summary"]["attempt"] == 2
    assert ended["summary"]["outcomes"]["finished"] == ended["summary"]["offered"] == 32
    kept = visitor.rest.get(f"/runs/{run_id}/samples", attempt=1)["samples"]
    assert [sample["seq"] for sample in kept] == list(range(1, len(kept) + 1)) and kept


@pytest.mark.parametrize("whole", [False, True], ids=["main process", "whole group"])
def test_kill_9_of_the_worker_in_mid_run(
    whole: bool, running: dict[str, Any], visitor: Visitor, product: Stack
) -> None:
    worker, pids = group_of(product, "celery"), run_group(product)
    pids += members(worker)
    killed_at = time.monotonic()
    (os.killpg if whole else os.kill)(worker, signal.SIGKILL)
    check_retried(visitor, running, killed_at)
    assert alive(pids) == []


def test_cancel_ends_a_running_run_and_its_children(running: dict[str, Any], visitor: Visitor, product: Stack) -> None:
    pids = run_group(product)
    asked_at = time.monotonic()
    visitor.rest.post(f"/runs/{running['id']}/cancel")
    wait_for(lambda: alive(pids) == [], "its processes are gone", 10)
    ended = visitor.wait_run(running["id"], *RUN_ENDED, within_s=10)
    assert ended["state"] == "cancelled"
    assert time.monotonic() - asked_at <= 10
    assert "requests.parquet" in {row["name"] for row in ended["artifacts"]}, "what was measured is kept"


def test_kill_9_of_the_supervisor_in_mid_run_leaves_nothing(tmp_path: Path) -> None:
    """Every process of the stack and of the run ends; the next start plays the run again to its end."""
    first = Stack(tmp_path / "home").wait_ready()
    second = None
    try:
        with Visitor.of(first.port, first.said()) as visitor:
            run_id = visitor.rest.post("/experiments", LONG)["runs"][0]["id"]
            visitor.wait_run(run_id, "running", within_s=60)
        groups = first.registered()

        def left() -> list[int]:
            return [*of_home(first.home), *(pid for pgid in groups for pid in members(pgid))]

        for word in ("gpu_runner.run", "launcher.py", "uvicorn", "celery", "valkey", "dispatch", "guardian"):
            assert any(word in " ".join(command_line(pid)) for pid in left()), word
        first.process.kill()
        first.process.wait()
        wait_for(lambda: left() == [], "every process ended", 20)

        second = Stack(tmp_path / "home").wait_ready()
        with Visitor.of(second.port, second.said()) as visitor:
            ended = visitor.wait_run(run_id, *RUN_ENDED, within_s=RUN_LIMIT_S)
            assert (ended["state"], ended["attempt"]) == ("succeeded", 2), ended["reason"]
        assert second.stop() == 0
    finally:
        first.clear()
        if second is not None:
            second.clear()
