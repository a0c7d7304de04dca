"""Playing the policies of a search, one after another, on the modelled target."""

from collections.abc import Callable, Mapping

from gpu_runner.run.inside import InsideRun
from gpu_runner.search.samplers import SAMPLERS, Choice, Sampler
from scheduler_core.evidence.finalise import summarise
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.resolving import check_playable, resolve
from scheduler_core.sim.alone import alone_e2e
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.studies import SearchSpec
from scheduler_core.spec.target import Profile, TargetSpec
from scheduler_core.spec.variants import turned
from scheduler_core.types.errors import HeadwayError
from scheduler_core.types.records import Record
from scheduler_core.verdict.search import SearchResult, Trial, conclude, objectives
from scheduler_core.workload.plan import ArrivalPlan

RELATIVE_PRICE = 1.0  # of a device-hour, where none was declared


class Search:
    """Plays the base and then each choice of the sampler; equal policies are played once.

    Every policy meets the same plan and the same noise stream (common random numbers), so that differences are the
    policies' own. ``stop`` is asked between policies.
    """

    def __init__(
        self, spec: SearchSpec, plan: ArrivalPlan, profile: Profile, group_profiles: Mapping[str, Profile] | None = None
    ) -> None:
        self.spec, self.plan, self.profile = spec, plan, profile
        self.group_profiles = dict(group_profiles or {})
        modelled = spec.target.modelled
        assert modelled is not None  # the spec's own rule
        price = modelled.price_per_device_hour or RELATIVE_PRICE
        self.target = TargetSpec(modelled=modelled.model_copy(update={"price_per_device_hour": price}))
        self.played: dict[str, Trial] = {}

    def result(self, told: Callable[[int, int], None], stop: Callable[[], bool]) -> SearchResult:
        """Play until the sampler has nothing more, or ``stop``; ``told`` hears (policies tried, at most)."""
        trials = [self._trial(0, {})]
        sampler: Sampler = SAMPLERS[self.spec.method](self.spec)
        for number, choice in enumerate(sampler.choices(), start=1):
            if stop():
                break
            trial = self._trial(number, choice)
            sampler.tell(trial.figures or None)
            if trial.number == number:
                trials.append(trial)
            told(number, self.spec.trials)
        return conclude(self.spec, trials)

    def _trial(self, number: int, choice: Choice) -> Trial:
        try:
            policy = resolve(turned(self.spec.base, choice))
            known = self.played.get(policy.digest())
            if known is not None:
                return known
            check_playable(policy, self.target, self.profile)
            trial = Trial(number=number, choice=choice, figures=self._figures(self._run(policy)))
        except HeadwayError as error:
            return Trial(number=number, choice=choice, failure=str(error))
        if not objectives(self.spec).keys() <= trial.figures.keys():
            trial = trial.model_copy(update={"failure": "too few requests finished to have every figure"})
        self.played[policy.digest()] = trial
        return trial

    def _figures(self, run: RunSummary) -> dict[str, float]:
        wanted = (*objectives(self.spec), "attainment_share", "completion_share", "goodput_rps")
        return {name: value for name in wanted if (value := run.metrics[name].value) is not None}

    def _run(self, policy: PolicySpec) -> RunSummary:
        workload, kept = self.spec.workload, _Kept()
        job = RunJob(
            run="search", arm="search", plan_file="", policy=policy, target=self.target, profile=self.profile,
            group_profiles=self.group_profiles, tiers=workload.tiers, workdir="", noise_seed=self.spec.seed,
        )  # fmt: skip
        InsideRun(job, self.plan).play(kept, lambda: False, lambda done, total: None, lambda: None)
        return summarise(
            kept.records,
            arm="search",
            repeat=0,
            tiers=workload.tiers,
            warmup_share=workload.warmup_share,
            alone=alone_e2e(self.profile, policy.batch.token_budget or 0),
        )


class _Kept:
    """Keeps the records of one short run."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)
