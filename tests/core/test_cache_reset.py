"""Resets of the prefix cache: when they succeed, what the forced one costs, and that it is nobody's output (V-26)."""

from pathlib import Path
from typing import Any

import pytest

from headway.play import play as play_experiment
from scheduler_core.cluster.build import Site, build_cluster
from scheduler_core.drive.cluster import ClusterDriver
from scheduler_core.drive.cuts import CacheResetAt
from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve_arms
from scheduler_core.request.lifecycle import State
from scheduler_core.sim.executor import SimulatedExecutor, TrueOutputs
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.topology import InstanceGroup, Topology
from scheduler_core.testing.builders import ListSink, Stepper, play, policy_spec, profile, request
from scheduler_core.types.errors import InputError
from scheduler_core.types.records import Admitted, CacheReset, Finished, Preempted, RunStarted

MS = 1_000_000
INDEXES = ("hash", "radix")


def stepper(**settings: Any) -> Stepper:
    return Stepper(policy_spec("vllm_v1", **{"cache__block_size": 4, **settings}), Capacity(40, 100))


def resets(records: list[Any]) -> list[CacheReset]:
    return [record for record in records if isinstance(record, CacheReset)]


@pytest.mark.parametrize("index", INDEXES)
def test_an_unused_cache_is_forgotten(index: str) -> None:
    """Prompt of 12 and 1 token: 3 full blocks stay cached. After the reset the same prompt finds none of them."""
    drive = stepper(cache__prefix=index)
    drive.submit(0, 12, seed=7)
    drive.step(last=[0])
    assert drive.instance.occupancy().kv_cached == 3
    drive.instance.reset_cache(drive.now)
    drive.submit(1, 12, seed=7)
    assert drive.step(last=[1]) == {1: 12}
    assert resets(drive.records) == [CacheReset(1, 1, False, True, 0, 0, 3)]


@pytest.mark.parametrize("index", INDEXES)
def test_a_reset_fails_while_a_block_is_in_use(index: str) -> None:
    """Request 0 holds 3 blocks of its 12 tokens and runs on: nothing is forgotten, so request 1 finds 2 of them."""
    drive = stepper(cache__prefix=index)
    drive.submit(0, 12, seed=7)
    drive.step()
    drive.instance.reset_cache(drive.now)
    drive.submit(1, 12, seed=7)
    assert drive.step() == {0: 1, 1: 4}
    assert resets(drive.records) == [CacheReset(1, 1, False, False, 3, 0, 0)]


def test_the_forced_reset_preempts_in_reverse_order_and_loses_no_token() -> None:
    """A, B and C run with prompts of 8 and one token each: the newest goes first, so they wait as they ran, A ahead.

    Each had computed 8 tokens, in 2 blocks. 3 x 2 blocks are given up, full and known, and forgotten. All 9 known
    tokens of each are computed again, in the step that the reset came before.
    """
    drive = stepper()
    for index in range(3):
        drive.submit(index, 8)
    assert drive.step() == {0: 8, 1: 8, 2: 8}
    drive.instance.reset_cache(drive.now, force=True)
    assert drive.step() == {0: 9, 1: 9, 2: 9}
    lost = [record for record in drive.records if isinstance(record, Preempted)]
    assert [(r.request, r.reason, r.blocks, r.tokens_lost) for r in lost] == [
        (2, "cache_reset", 2, 8),
        (1, "cache_reset", 2, 8),
        (0, "cache_reset", 2, 8),
    ]
    assert resets(drive.records) == [CacheReset(1, 1, True, True, 0, 3, 6)]


def test_a_reset_waits_for_the_steps_in_flight() -> None:
    """With two steps in flight nothing is planned until both have come back; their tokens count (V-18)."""
    drive = Stepper(policy_spec("vllm_v1", cache__block_size=4), Capacity(40, 100), depth=2, plan_on_promises=True)
    drive.submit(0, 8)
    first, second = drive.plan(), drive.plan()
    drive.instance.reset_cache(drive.now, force=True)
    drive.complete(first)
    assert drive.try_plan() is None and drive.instance.state_of(0) is State.RUNNING
    drive.complete(second)
    assert drive.step() == {0: 10}  # 8 of the prompt and the 2 tokens of both steps
    assert resets(drive.records) == [CacheReset(2, 0, True, True, 0, 1, 2)]


def test_two_resets_at_once_are_one_at_the_force_of_either() -> None:
    drive = stepper()
    drive.submit(0, 8)
    drive.step()
    drive.instance.reset_cache(drive.now, force=True)
    drive.instance.reset_cache(drive.now + 5)
    drive.step()
    assert [(r.asked_ns, r.forced, r.done) for r in resets(drive.records)] == [(1, True, True)]


@pytest.mark.parametrize("way", ["swap", "keep"])
def test_a_forced_reset_takes_what_stopped_requests_hold(way: str) -> None:
    """Pool of 5, two prompts of 8: in step 1 one of them stops, with 2 blocks on the device or in the host."""
    settings = {"cache__preemption": way, "cache__host_blocks": 8, "cache__block_size": 4}
    drive = Stepper(policy_spec("vllm_v1", **settings), Capacity(5, 100))
    drive.submit(0, 8, limit=6)
    drive.submit(1, 8, limit=6)
    drive.step()
    drive.step()
    stopped = State.SWAPPED if way == "swap" else State.PAUSED
    assert drive.instance.state_of(1) is stopped
    drive.instance.reset_cache(drive.now)
    drive.step()
    assert not resets(drive.records)[0].done
    drive.instance.reset_cache(drive.now, force=True)
    drive.step()
    assert resets(drive.records)[1].done
    assert drive.instance.occupancy().host_used == 0


def audited(sink: Any, blocks: int, **started: Any) -> Audit:
    audit = Audit()
    audit.take(RunStarted("r", 1, "", "", {}, {}, "simulation", "modelled", 0, blocks, 4, 0, **started))
    for record in sink.records:
        audit.take(record)
    return audit


def test_a_run_with_resets_is_lawful_and_recorded() -> None:
    """Steps of 1 ms, equal prompts of 12 at 0, 10 and 20 ms: a reset at 15 ms lets the third find nothing."""
    requests = [request(index, 12, 2, at_ms=at, seed=7) for index, at in enumerate((0, 10, 20))]
    spec = policy_spec("vllm_v1", cache__block_size=4)
    played = play(spec, requests, capacity=Capacity(40, 100), resets=[CacheResetAt(15 * MS)])
    assert [record.hit_tokens for record in played.sink.of(Admitted)] == [0, 8, 0]
    assert [(r.at_ns, r.done, r.dropped) for r in played.sink.of(CacheReset)] == [(15 * MS, True, 4)]
    audit = audited(played.sink, 40)
    assert audit.found == 0 and audit.checks["reset when unused"] == 2


def test_the_audit_finds_a_reset_under_a_running_request() -> None:
    requests = [request(0, 12, 9)]
    played = play(policy_spec("vllm_v1", cache__block_size=4), requests, capacity=Capacity(40, 100))
    first = next(index for index, record in enumerate(played.sink.records) if isinstance(record, Admitted))
    played.sink.records.insert(first + 1, CacheReset(0, 0, False, True, 0, 0, 0))
    assert "reset when unused" in (audited(played.sink, 40).first_violation or "")


def test_every_instance_of_a_cluster_forgets() -> None:
    """Two replicas in turn: both are reset while their requests run, lose one each, and all requests end."""
    requests = [request(index, 12, 9, at_ms=index, seed=7) for index in range(2)]
    spec = policy_spec("vllm_v1", cache__block_size=4, pools__layout="replicas", pools__route="round_robin")
    site = Site(Topology(groups={"a": InstanceGroup(count=2)}), {"a": Capacity(40, 100)}, lambda _, tokens: tokens)
    outputs, sink = TrueOutputs(), ListSink()
    ClusterDriver(
        cluster=build_cluster(spec, site),
        requests=requests,
        executors=[SimulatedExecutor(profile=profile(), outputs=outputs) for _ in range(2)],
        sink=sink,
        stop=lambda: False,
        resets=[CacheResetAt(4 * MS, force=True)],
    ).run()
    assert [(r.instance, r.done, r.preempted) for r in sink.of(CacheReset)] == [(0, True, 1), (1, True, 1)]
    assert [r.outcome for r in sink.of(Finished)] == ["finished", "finished"]


def experiment(**changes: Any) -> ExperimentSpec:
    data = {
        "name": "reset",
        "workload": {"arrivals": {"constant": {"rate_rps": 0.01}}, "requests": 4, "prefix": {"tokens": 96},
                     "lengths": {"prompt": {"fixed": 96}, "output": {"fixed": 2}}},
        "target": {"modelled": {"kv_blocks": 64}},
        "arms": {"a": {"policy": "vllm_v1"}, "b": {"policy": "sglang"}},
        "repeats": 1,
        **changes,
    }  # fmt: skip
    return parse(ExperimentSpec, data)


def test_an_experiment_resets_every_run_of_every_arm(tmp_path: Path) -> None:
    """Four equal prompts of 96 tokens 100 s apart: each but the first finds 5 blocks of 16 (sglang 95 // 16 too).

    A reset in between takes that from one of them: 3 x 80 of 4 x 96 prompt tokens become 2 x 80.
    """
    played = play_experiment(experiment(), base=tmp_path / "plain", on_step=lambda step: None)
    assert [run.metrics["hit_rate"].value for run in played.runs] == [240 / 384] * 2
    spec = experiment(events={"cache_resets": [{"at_s": 150}]})
    played = play_experiment(spec, base=tmp_path / "reset", on_step=lambda step: None)
    assert [run.metrics["hit_rate"].value for run in played.runs] == [160 / 384] * 2


def test_a_server_is_not_reset_in_the_middle_of_a_run() -> None:
    spec = experiment(events={"cache_resets": [{"at_s": 1}]}, target={"server": {"url": "http://127.0.0.1:1"}})
    with pytest.raises(InputError, match="reset_cache"):
        resolve_arms(spec, None)
