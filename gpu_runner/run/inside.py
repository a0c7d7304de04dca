"""A run whose steps are planned here: driver, policy and executor, on a simulated clock or on real kernels."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gpu_runner.run.driving import Surroundings, prepare
from gpu_runner.run.playing import Finalise, Sampler
from gpu_runner.run.scenario import Scenario
from gpu_runner.run.target import open_target
from gpu_runner.run.trust import with_trust
from scheduler_core.drive.cuts import resets_of
from scheduler_core.drive.ports import Sink
from scheduler_core.evidence.finalise import finalise
from scheduler_core.evidence.live.sampler import LiveSampler
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.predicting import foresight_of
from scheduler_core.policies.resolving import resolve
from scheduler_core.sim.alone import alone_e2e
from scheduler_core.spec.job import RunJob, Sample
from scheduler_core.types.records import Record, RunStarted
from scheduler_core.types.time import Ns
from scheduler_core.workload.plan import ArrivalPlan


class InsideRun:
    """One policy on one in-process executor, or on a cluster of modelled ones.

    Raises:
        InputError: policy, model, device or profile cannot be had.
    """

    def __init__(self, job: RunJob, plan: ArrivalPlan) -> None:
        self._job = job
        self._plan = plan
        self._policy = resolve(job.policy)
        alone = None if job.profile is None else alone_e2e(job.profile, self._policy.batch.token_budget or 0)
        self.finalise: Finalise = partial(finalise, alone=alone)
        self._target = open_target(job, self._policy, prefix_block_size=plan.block_size)

    def sampler(self, interval_ns: Ns, on_sample: Callable[[Sample], None]) -> Sampler:
        return LiveSampler(interval_ns=interval_ns, total=len(self._plan.requests), on_sample=on_sample)

    def play(
        self, sink: Sink, stop: Callable[[], bool], on_progress: Callable[[int, int], None], serving: Callable[[], None]
    ) -> None:
        around = Surroundings(
            requests=self._plan.requests,
            sink=sink,
            stop=stop,
            on_progress=on_progress,
            prefix_block_size=self._plan.block_size,
            patience=self._job.patience(),
            foresight=foresight_of(self._policy.predict),
            resets=resets_of(self._job.events),
            fork=self._job.fork,
        )
        prepared = prepare(self._policy, self._target, around)
        sink.write(self._started(prepared.instances))
        sink.write(self._target.loaded)
        serving()
        self._target.start()
        prepared.loop.run()

    def beside_model(self, summary: RunSummary, records: Callable[[], Iterable[Record]]) -> RunSummary:
        return with_trust(summary, Scenario(self._job, self._plan, self._policy, self._target), records)

    def close(self) -> None:
        """Nothing outlives this process."""

    def _started(self, instances: list[dict[str, Any]]) -> RunStarted:
        policy, target = self._policy, self._target
        assert policy.cache.block_size is not None  # resolved policies are complete
        return RunStarted(
            run=self._job.run,
            attempt=self._job.attempt,
            plan_digest=self._plan.digest,
            policy_digest=policy.digest(),
            policy=policy.canonical(),
            target=self._job.target.canonical(),
            level=target.level,
            source=target.source,
            offered=len(self._plan.requests),
            kv_blocks=sum(one["kv_blocks"] for one in instances) or target.capacity.kv_blocks,
            block_size=policy.cache.block_size,
            token_budget=policy.batch.token_budget or 0,
            observed_hit_share=self._plan.observed_hit_share,
            fingerprint=target.fingerprint | _forked(self._job),
            instances=instances,
            devices=sum(one["devices"] for one in instances) or target.devices,
        )


def _forked(job: RunJob) -> dict[str, Any]:
    fork = job.fork
    return {} if fork is None else {"forked_at_s": fork.at_s, "policy_before": fork.policy.digest()}
