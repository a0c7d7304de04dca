"""How far a modelled run may be trusted: bands around its figures, and what lies beyond the measured domain."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from gpu_runner.run.scenario import Scenario
from gpu_runner.run.target import open_target
from scheduler_core.drive.cuts import Outside
from scheduler_core.evidence.prediction import Band, Predicted
from scheduler_core.evidence.records.expand import shapes
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.fidelity.bands import (
    BANDED,
    Play,
    Scene,
    bands,
    figures_of,
    off,
    played_fast,
    step_error_share,
)
from scheduler_core.fidelity.domain import Domain
from scheduler_core.policies.predicting import foresight_of
from scheduler_core.policies.presets import build_policy, dual_batch_of, overlap_of
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fleet import Fleet, why_step_by_step
from scheduler_core.sim.rows import RequestRow
from scheduler_core.spec.target import Profile
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.records import Record, RunStarted, Step
from scheduler_core.types.shape import shape_of_step

FAST_REQUESTS = 50_000
STEPS = 20_000


def predicted(summary: RunSummary, scenario: Scenario, profile: Profile, records: Iterable[Record]) -> Predicted:
    """What can be said of ``summary``, that of a run on ``profile``, or in a cluster on those of its groups.

    For the bands the plan is played three times more: from event to event where a run can be, else step by step.
    """
    profiles, stream = _by_instance(scenario, profile), iter(records)
    started = next(stream)
    assert isinstance(started, RunStarted)  # the summary was made from the same records
    domain = Domain(*profiles)
    if scenario.target.cluster is None:
        for shape in shapes(stream):
            domain.take(shape)
    else:
        for record in stream:
            if isinstance(record, Step):
                domain.take(shape_of_step(record), record.instance)
    found, unbanded = _bands(summary, scenario, profiles, started)
    return Predicted(
        error_share=max(map(step_error_share, profiles)),
        bands=found,
        unbanded=unbanded,
        extrapolated=domain.extrapolated,
        extrapolated_share=domain.share,
    )


def _by_instance(scenario: Scenario, profile: Profile) -> list[Profile]:
    """The profile of each instance, by index."""
    cluster = scenario.target.cluster
    if cluster is None:
        return [profile]
    own = scenario.job.group_profiles
    return [own.get(name, profile) for name, group in cluster.site.topology.groups.items() for _ in range(group.count)]


def _bands(
    summary: RunSummary, scenario: Scenario, profiles: Sequence[Profile], started: RunStarted
) -> tuple[dict[str, Band], str]:
    """Bands, or none and why."""
    play: Play
    unknown = sorted({profile.name for profile in profiles if not step_error_share(profile)})
    if unknown:
        return {}, f"nothing was measured that says how far off {', '.join(unknown)} is"
    if why := _why_step_by_step(scenario, profiles):
        if summary.steps > STEPS:
            return {}, f"{why}, so that it would be played step by step, and it has more than {STEPS:,} steps"
        play = partial(_by_steps, scenario, started)
    elif len(scenario.plan.requests) > FAST_REQUESTS:
        return {}, f"it would be played three times more, and it has more than {FAST_REQUESTS:,} requests"
    elif scenario.target.cluster is None:
        scene = _scene(scenario)
        play = lambda way: played_fast(scene, off(profiles[0], way))  # noqa: E731
    else:
        play = partial(_by_fleet, scenario)
    return bands(play, summary.metrics), ""


def _why_step_by_step(scenario: Scenario, profiles: Sequence[Profile]) -> str:
    """Why the run cannot be played from event to event; empty where it can."""
    job, policy = scenario.job, scenario.policy
    if overlap_of(policy) is not Overlap.NONE:
        return "its steps overlap"
    if job.fork is not None or job.events is not None:
        return "it has a fork or events"
    if any(StepCost(profile, dual_batch=dual_batch_of(policy)).knows_replicas for profile in profiles):
        return "its attention is replicated"
    return "" if scenario.target.cluster is None else why_step_by_step(policy)


def _scene(scenario: Scenario) -> Scene:
    return Scene(
        build=lambda: build_policy(scenario.policy, scenario.target.capacity),
        requests=scenario.plan.requests,
        prefix_block_size=scenario.plan.block_size,
        patience=scenario.job.patience(),
        foresight=foresight_of(scenario.policy.predict),
        dual_batch=dual_batch_of(scenario.policy),
    )


def _by_fleet(scenario: Scenario, way: int) -> dict[str, float]:
    """Figures of the plan on the same cluster, its instances `off`, from event to event."""
    moved, rows = _off(scenario, way), list[RequestRow]()
    assert moved.target.cluster is not None and moved.job.profile is not None  # asked of clusters on a model
    fleet = Fleet(
        scenario.policy,
        moved.target.cluster.site,
        [StepCost(own, dual_batch=dual_batch_of(scenario.policy)) for own in _by_instance(moved, moved.job.profile)],
        lambda row, _instance: rows.append(row),
        prefix_block_size=scenario.plan.block_size,
        outside=Outside(patience=scenario.job.patience(), foresight=foresight_of(scenario.policy.predict)),
    )
    return figures_of(rows, fleet.run(scenario.plan.requests).end_ns)


def _by_steps(scenario: Scenario, started: RunStarted, way: int) -> dict[str, float]:
    """Figures of the plan on the same target, `off`, by the loop that ran it."""
    moved = _off(scenario, way)
    metrics = moved.metrics(moved.played_on(moved.target, started))
    return {name: value for name in BANDED if name in metrics and (value := metrics[name].value) is not None}


def _off(scenario: Scenario, way: int) -> Scenario:
    """``scenario`` on the same target without noise, each of its profiles `off` by its own error."""
    job = scenario.job
    assert job.profile is not None and job.target.modelled is not None  # a modelled run has both
    exact = job.target.modelled.model_copy(update={"noise": False})
    job = job.model_copy(
        update={
            "profile": off(job.profile, way),
            "group_profiles": {name: off(own, way) for name, own in job.group_profiles.items()},
            "target": job.target.model_copy(update={"modelled": exact}),
        }
    )
    target = open_target(job, scenario.policy, prefix_block_size=scenario.plan.block_size)
    return replace(scenario, job=job, target=target)
