"""How a run stands to the model: bands around predicted figures, or measured steps beside predicted ones."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpu_runner.run.predicted import predicted
from gpu_runner.run.scenario import Scenario
from scheduler_core.evidence.prediction import AgainstModel
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.fidelity.difference import against_model
from scheduler_core.policies.presets import overlap_of
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.spec.target import Profile
from scheduler_core.types.records import Record, RunStarted, Step

ReadRecords = Callable[[], Iterable[Record]]
COMPARED_STEPS = 200_000


def with_trust(summary: RunSummary, scenario: Scenario, records: ReadRecords) -> RunSummary:
    """``summary`` with what can be said of the model; unchanged where there is no profile, or no such comparison.

    A modelled run gets bands, or why there are none. A run of kernels on one instance, with a profile in its job, is
    set beside the model, up to `COMPARED_STEPS`.
    """
    profile = scenario.job.profile
    if profile is None or not summary.complete:
        return summary
    if scenario.job.target.modelled is not None:
        return summary.model_copy(update={"predicted": predicted(summary, scenario, profile, records())})
    if summary.steps > COMPARED_STEPS:
        return summary
    return summary.model_copy(update={"against_model": _against(summary, scenario, profile, records())})


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
        predictions=scenario.metrics(modelled),
    )


def _modelled(scenario: Scenario, profile: Profile, started: RunStarted) -> list[Record]:
    """The records of the same plan and policy on the model, without noise."""
    policy = scenario.policy
    assert policy.cache.block_size is not None  # resolved policies are complete
    executor = SimulatedExecutor(profile=profile, overlap=overlap_of(policy), block_size=policy.cache.block_size)
    return scenario.played_on(replace(scenario.target, executor=executor), started)
