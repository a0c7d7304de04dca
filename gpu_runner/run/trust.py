"""How a run stands to the model: bands around predicted figures, or measured steps beside predicted ones."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gpu_runner.run.driving import Surroundings, prepare
from gpu_runner.run.target import Target
from scheduler_core.drive.cuts import resets_of
from scheduler_core.evidence.expand import shapes
from scheduler_core.evidence.finalise import summarise
from scheduler_core.evidence.prediction import AgainstModel, Predicted
from scheduler_core.evidence.schema import Figure, RunSummary
from scheduler_core.fidelity.bands import Scene, bands, step_error_share
from scheduler_core.fidelity.difference import against_model
from scheduler_core.fidelity.domain import Domain
from scheduler_core.policies.predicting import foresight_of
from scheduler_core.policies.presets import build_policy, dual_batch_of, overlap_of
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.records import Record, RunStarted, Step
from scheduler_core.workload.plan import ArrivalPlan

ReadRecords = Callable[[], Iterable[Record]]
BANDED_REQUESTS = 50_000
COMPARED_STEPS = 200_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """What was run: job, arrival plan and resolved policy, on a loaded target."""

    job: RunJob
    plan: ArrivalPlan
    policy: PolicySpec
    target: Target


def with_trust(summary: RunSummary, scenario: Scenario, records: ReadRecords) -> RunSummary:
    """``summary`` with what can be said of the model; unchanged where there is no profile, or no such comparison.

    A modelled run gets bands, except where `_banded` says no. A run of kernels on one instance, with a profile in its
    job, is set beside the model, up to `COMPARED_STEPS`.
    """
    profile, target = scenario.job.profile, scenario.target
    if profile is None or target.cluster is not None or not summary.complete:
        return summary
    if scenario.job.target.modelled is not None:
        return summary.model_copy(update={"predicted": _predicted(summary, scenario, profile, records())})
    if summary.steps > COMPARED_STEPS:
        return summary
    return summary.model_copy(update={"against_model": _against(summary, scenario, profile, records())})


def _predicted(summary: RunSummary, scenario: Scenario, profile: Profile, records: Iterable[Record]) -> Predicted:
    domain = Domain(profile)
    for shape in shapes(records):
        domain.take(shape)
    played = _banded(scenario, profile)
    scene = Scene(
        build=lambda: build_policy(scenario.policy, scenario.target.capacity),
        requests=scenario.plan.requests,
        prefix_block_size=scenario.plan.block_size,
        patience=scenario.job.patience(),
        foresight=foresight_of(scenario.policy.predict),
        dual_batch=dual_batch_of(scenario.policy),
    )
    return Predicted(
        error_share=step_error_share(profile),
        bands=bands(scene, profile, summary.metrics) if played else {},
        extrapolated=domain.extrapolated,
        extrapolated_share=domain.share,
    )


def _banded(scenario: Scenario, profile: Profile) -> bool:
    """Whether the run can be played fast: one instance and one attention replica, step after step, nothing forced."""
    job, policy = scenario.job, scenario.policy
    if overlap_of(policy) is not Overlap.NONE or job.fork is not None or job.events is not None:
        return False
    if StepCost(profile, dual_batch=dual_batch_of(policy)).knows_replicas:
        return False
    return len(scenario.plan.requests) <= BANDED_REQUESTS


def _against(summary: RunSummary, scenario: Scenario, profile: Profile, records: Iterable[Record]) -> AgainstModel:
    measured: list[Step] = []
    started: RunStarted | None = None
    for record in records:
        if isinstance(record, Step):
            measured.append(record)
        elif isinstance(record, RunStarted):
            started = record
    assert started is not None  # the summary was made from the same records
    modelled = _modelled(scenario, profile, started)
    return against_model(
        measured,
        (record for record in modelled if isinstance(record, Step)),
        profile,
        figures=summary.metrics,
        predictions=_predictions(scenario, modelled),
    )


def _modelled(scenario: Scenario, profile: Profile, started: RunStarted) -> list[Record]:
    """The records of the same plan and policy on the model, without noise."""
    records = _Kept([started])
    executor = SimulatedExecutor(profile=profile, overlap=overlap_of(scenario.policy))
    around = Surroundings(
        requests=scenario.plan.requests,
        sink=records,
        stop=lambda: False,
        on_progress=lambda done, total: None,
        prefix_block_size=scenario.plan.block_size,
        patience=scenario.job.patience(),
        foresight=foresight_of(scenario.policy.predict),
        resets=resets_of(scenario.job.events),
    )
    prepare(scenario.policy, replace(scenario.target, executor=executor), around).loop.run()
    return records.kept


def _predictions(scenario: Scenario, records: list[Record]) -> dict[str, Figure]:
    job = scenario.job
    summary = summarise(records, arm=job.arm, repeat=job.repeat, tiers=job.tiers, warmup_share=job.warmup_share)
    return summary.metrics


@dataclass(frozen=True, slots=True)
class _Kept:
    kept: list[Record]

    def write(self, record: Record) -> None:
        self.kept.append(record)
