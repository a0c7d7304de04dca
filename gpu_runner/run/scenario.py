"""What was run, and the same plan played again on a model."""

from dataclasses import dataclass

from gpu_runner.run.driving import Surroundings, prepare
from gpu_runner.run.target import Target
from scheduler_core.drive.cuts import resets_of
from scheduler_core.evidence.finalise import summarise
from scheduler_core.evidence.schema import Figure
from scheduler_core.policies.predicting import foresight_of
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.records import Record, RunStarted
from scheduler_core.workload.plan import ArrivalPlan


@dataclass(frozen=True, slots=True)
class Scenario:
    """What was run: job, arrival plan and resolved policy, on a loaded target."""

    job: RunJob
    plan: ArrivalPlan
    policy: PolicySpec
    target: Target

    def played_on(self, target: Target, started: RunStarted) -> list[Record]:
        """The records of the same plan and policy on ``target``, behind the run's own ``started``."""
        records = _Kept([started])
        around = Surroundings(
            requests=self.plan.requests,
            sink=records,
            stop=lambda: False,
            on_progress=lambda done, total: None,
            prefix_block_size=self.plan.block_size,
            patience=self.job.patience(),
            foresight=foresight_of(self.policy.predict),
            resets=resets_of(self.job.events),
            fork=self.job.fork,
        )
        prepare(self.policy, target, around).loop.run()
        return records.kept

    def metrics(self, records: list[Record]) -> dict[str, Figure]:
        """The metrics of ``records``, as of the run's own."""
        job = self.job
        return summarise(
            records, arm=job.arm, repeat=job.repeat, tiers=job.tiers, warmup_share=job.warmup_share
        ).metrics


@dataclass(frozen=True, slots=True)
class _Kept:
    kept: list[Record]

    def write(self, record: Record) -> None:
        self.kept.append(record)
