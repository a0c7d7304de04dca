"""Forks: exact when nothing changed, one run until the moment, and only the changed rule after it."""

import random
from pathlib import Path
from typing import Any

import pytest

from headway.play import play as play_experiment
from scheduler_core.drive.driver import Driver
from scheduler_core.drive.fork import Switch, due_from
from scheduler_core.policies.presets import Capacity, branch_of, build_instance, build_policy
from scheduler_core.policies.registry import BUILT_IN
from scheduler_core.policies.resolving import resolve, resolve_arms
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.testing.builders import ListSink, policy_spec, profile, request
from scheduler_core.types.errors import CallerError, InputError
from scheduler_core.types.records import Finished, Step
from scheduler_core.types.time import ns_from_ms

CAPACITY = Capacity(16, 1000)
AT = ns_from_ms(150)
PRESETS = tuple(manifest.name for manifest in BUILT_IN if manifest.name != "as_served")


def traffic() -> Any:
    draw = random.Random(4)
    return [
        request(index, draw.randint(5, 90), draw.randint(1, 40), at_ms=draw.random() * 300, tenant=f"t{index % 3}",
                priority=index % 2)
        for index in range(50)
    ]  # fmt: skip


def run(trunk: PolicySpec, branch: PolicySpec | None = None, *, at_ns: int = AT) -> Any:
    """Digests and records of a run under ``trunk``; with ``branch`` that takes over at ``at_ns``."""
    instance, sink = build_instance(trunk, CAPACITY), ListSink()
    switch = None
    if branch is not None:
        policy = branch_of(instance.policy, trunk, branch, CAPACITY)
        switch = Switch(at_ns, lambda: instance.change_policy(policy))
    report = Driver(
        instance=instance,
        requests=traffic(),
        executor=SimulatedExecutor(profile=profile(base_ms=3, prefill_token_ms=0.05), noise_seed=3),
        sink=sink,
        stop=lambda: False,
        law_interval=1,
        keep_digests=True,
        switch=switch,
    ).run()
    return report.plan_digests, sink


@pytest.mark.parametrize("order", ["arrival", "priority", "shortest"])
def test_a_fork_that_changes_nothing_is_the_same_run(order: str) -> None:
    """Preempted requests wait in front and others by key at the moment: the queue goes over as it is."""
    spec = policy_spec("vllm_v1", order__by=order)
    plain, sink = run(spec)
    forked, again = run(spec, spec)
    assert forked == plain
    assert again.records == sink.records
    assert any(step.planned_ns > AT and step.waiting for step in sink.of(Step))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_forks_exactly_at_any_moment(preset: str) -> None:
    """Also where a rule changes that decides nothing here: what the parts have learned goes over to the new policy."""
    spec, same = policy_spec(preset), policy_spec(preset, batch__queue_limit=10_000)
    plain = run(spec)[0]
    for at_ms, then in ((1, same), (60, spec), (150, same), (240, spec)):
        assert run(spec, then, at_ns=ns_from_ms(at_ms))[0] == plain, at_ms


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch__size", 3), ("batch__token_budget", 40), ("order__by", "priority"), ("order__by", "shortest"),
     ("cache__admit", "limit"), ("cache__watermark", 0.3)],
)  # fmt: skip
def test_one_changed_rule_changes_nothing_before_the_moment(name: str, value: Any) -> None:
    plain, sink = run(policy_spec("vllm_v1"))
    forked, again = run(policy_spec("vllm_v1"), policy_spec("vllm_v1", **{name: value}))
    before = sum(step.planned_ns < AT for step in sink.of(Step))
    assert before > 10
    assert forked[:before] == plain[:before]
    assert forked != plain
    assert len(again.of(Finished)) == 50


def test_a_smaller_batch_empties_from_the_moment_on() -> None:
    """Nobody is thrown out, but nobody comes in before fewer than three run."""
    _, sink = run(policy_spec("vllm_v1"), policy_spec("vllm_v1", batch__size=3))
    steps = [step for step in sink.of(Step) if step.planned_ns >= AT]
    counts = [step.running for step in steps]
    assert max(step.running for step in sink.of(Step) if step.planned_ns < AT) > 3
    assert counts[-1] <= 3
    settled = next(number for number, count in enumerate(counts) if count <= 3)
    assert counts[:settled] == sorted(counts[:settled], reverse=True)
    assert max(counts[settled:]) == 3


def test_another_pool_is_refused() -> None:
    instance = build_instance(policy_spec("vllm_v1"), CAPACITY)
    with pytest.raises(CallerError, match="another pool"):
        instance.change_policy(build_policy(policy_spec("vllm_v1", cache__block_size=8), CAPACITY))


def test_what_is_due_from_a_moment_on() -> None:
    """Arrivals at 0, 10 and 20 ms; 3 comes at least 15 ms after 1, so not before 25; 4 only 2 ms after 0."""
    plan = [request(0, 5, 1), request(1, 5, 1, at_ms=10), request(2, 5, 1, at_ms=20),
            request(3, 5, 1, at_ms=15, after=(1,))]  # fmt: skip
    assert [due_from(plan, ns_from_ms(at)) for at in (0, 1, 11, 20, 21, 25, 26)] == [0, 1, 2, 2, 3, 3, 4]


def experiment(**changes: Any) -> ExperimentSpec:
    return parse(
        ExperimentSpec,
        {
            "name": "fork",
            "workload": {"arrivals": {"poisson": {"rate_rps": 4}}, "requests": 40,
                         "lengths": {"prompt": {"uniform": {"low": 20, "high": 200}}, "output": {"fixed": 20}}},
            "target": {"modelled": {"kv_blocks": 64}},
            "arms": {"baseline": {"policy": "vllm_v1"}, "small": {"policy": "vllm_v1", "batch": {"size": 2}}},
            "repeats": 2,
            "fork": {"at_s": 4},
            **changes,
        },
    )  # fmt: skip


def test_an_experiment_forks_and_compares_from_the_moment(tmp_path: Path) -> None:
    spec = experiment(arms={"baseline": {"policy": "vllm_v1"}, "same": {"policy": "vllm_v1"}})
    played = play_experiment(spec, base=tmp_path, on_step=lambda step: None)
    first, second = (next(run for run in played.runs if run.arm == arm and run.repeat == 0) for arm in spec.arms)
    assert first.decisions_digest == second.decisions_digest
    assert first.metrics == second.metrics
    before = due_from(played.plan.requests, ns_from_ms(4000))
    assert 0 < before < 40
    assert first.measured == 40 - before
    assert first.fingerprint["forked_at_s"] == 4


def test_a_changed_arm_has_the_same_beginning(tmp_path: Path) -> None:
    played = play_experiment(experiment(), base=tmp_path, on_step=lambda step: None)
    first, second = (
        next(run for run in played.runs if run.arm == arm and run.repeat == 0) for arm in ("baseline", "small")
    )
    assert first.decisions_digest != second.decisions_digest
    assert played.verdict is not None
    assert [comparison.obstacles for comparison in played.verdict.comparisons] == [[]]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"arms": {"baseline": {"policy": "vllm_v1"}, "b": {"policy": "static"}}}, "arms.b.policy"),
        ({"arms": {"baseline": {"policy": "vllm_v1"}, "b": {"policy": "vllm_v1", "cache": {"block_size": 8}}}},
         "arms.b.cache.block_size"),
        ({"target": {"torch": {}}}, "fork"),
    ],
)  # fmt: skip
def test_what_cannot_change_in_the_middle_is_told(changes: Any, where: str) -> None:
    with pytest.raises(InputError) as told:
        resolve_arms(experiment(**changes), None)
    assert [problem.where for problem in told.value.problems] == [where]


def test_a_moment_after_the_last_arrival_is_told(tmp_path: Path) -> None:
    from headway.play import PlayError

    with pytest.raises(PlayError, match="no request is due"):
        play_experiment(experiment(fork={"at_s": 10_000}), base=tmp_path, on_step=lambda step: None)


def test_a_resolved_policy_forks_into_itself() -> None:
    from scheduler_core.spec.fork import check_fork

    check_fork(resolve(policy_spec("vllm_v1")), resolve(policy_spec("vllm_v1")))
