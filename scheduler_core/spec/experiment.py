"""The experiment spec: one workload, one target, two or more arms, one goal."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from scheduler_core.spec.base import Name, Spec
from scheduler_core.spec.events import EventsSpec
from scheduler_core.spec.fork import ForkJob, ForkSpec
from scheduler_core.spec.goal import GoalSpec
from scheduler_core.spec.loads import SweepSpec, at_load
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import TargetSpec
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.types.errors import InputError


class Place(NamedTuple):
    """Where a run stands in its experiment; ``load`` is None without a sweep."""

    repeat: int
    arm: str
    load: float | None = None


class ExperimentSpec(Spec):
    """What is compared, on what, how often, and what counts as better.

    Two equal arms are an A/A test, which a verdict says.
    """

    name: Name
    workload: WorkloadSpec
    target: TargetSpec = TargetSpec.model_validate({"torch": {}})
    arms: dict[Name, PolicySpec] = Field(min_length=1, max_length=16)
    baseline: str = Field(
        "", description="The arm that the others are compared with; absent: the one named baseline, or else the first."
    )
    repeats: Annotated[int, Field(ge=1, le=100)] = Field(
        5,
        description="Pairs of runs. With goal.looks they are rounded up to a look, and further pairs are added up to "
        "the next look while it can change the answer.",
    )
    goal: GoalSpec = GoalSpec()
    sweep: SweepSpec | None = Field(
        None,
        description="Play every arm at each of these loads. The verdict then compares capacities: the primary is the "
        "highest load that meets the objectives, goal.better_by its margin, guarded by goodput per device.",
    )
    fork: ForkSpec | None = Field(
        None,
        description="Every arm plays the baseline's policy up to a moment and its own from there, and is compared from "
        "there. On one modelled instance.",
    )
    events: EventsSpec | None = Field(
        None, description="What happens to the instances during every run, beside the requests; not on servers."
    )
    run_limit_s: float = Field(
        600.0, gt=0, le=86_400, description="Longest a run may take before it is stopped as failed."
    )

    @model_validator(mode="before")
    @classmethod
    def _name_baseline(cls, data: Any) -> Any:
        """Write the baseline out: the order of keys is lost in digests and in some databases."""
        if not isinstance(data, Mapping) or data.get("baseline") is not None:
            return data
        arms = data.get("arms")
        if not isinstance(arms, Mapping) or not arms:
            return data
        return {**data, "baseline": "baseline" if "baseline" in arms else next(iter(arms))}

    @model_validator(mode="after")
    def _known_baseline(self) -> Self:
        if self.baseline not in self.arms:
            raise ValueError(f"baseline: there is no arm {self.baseline!r}; there are {', '.join(self.arms)}")
        return self

    @model_validator(mode="after")
    def _sweepable(self) -> Self:
        if self.sweep is None:
            return self
        if self.goal.looks:
            raise ValueError("goal.looks: a load sweep looks once, at all repeats; leave looks out")
        try:
            for load in self.sweep.loads:
                at_load(self.workload, load)
        except InputError as error:
            raise ValueError(f"sweep: {error}") from None
        return self

    @property
    def loads(self) -> tuple[float | None, ...]:
        """Loads in rising order; only None, the workload's own, without a sweep."""
        return (None,) if self.sweep is None else tuple(sorted(self.sweep.loads))

    def workload_at(self, load: float | None) -> WorkloadSpec:
        """The workload at one of `loads`."""
        return self.workload if load is None else at_load(self.workload, load)

    def first_pairs(self) -> int:
        """Pairs that are run before the verdict is asked for the first time."""
        return next((look for look in self.goal.looks if look >= self.repeats), self.repeats)

    def runs(self, repeats: Iterable[int] | None = None) -> list[Place]:
        """Runs in the order they are made: arms interleaved, rotated so that no arm always goes first.

        Of ``repeats`` (from 0), by default those of the first pairs; each repeat is complete before the next begins.
        """
        names = list(self.arms)
        return [
            Place(repeat, names[(number + turn + repeat) % len(names)], load)
            for repeat in (range(self.first_pairs()) if repeats is None else repeats)
            for turn, load in enumerate(self.loads)
            for number in range(len(names))
        ]

    def forked(self, arm: str, changed: Any, *, at_s: float, load: float | None = None) -> dict[str, Any]:
        """An experiment in which ``arm``, from ``at_s`` on, is set beside ``changed`` (a policy); as plain data.

        ``load`` is that of a sweep's run; the fork plays the workload of that load alone.
        """
        return {
            **self.canonical(),
            "name": f"{self.name[:40].rstrip()} forked at {at_s:g} s"[:64].rstrip(),
            "workload": self.workload_at(load).canonical(),
            "arms": {"as-it-was": self.arms[arm].canonical(), "changed": changed},
            "baseline": "as-it-was",
            "goal": {**self.goal.canonical(), "looks": []},
            "sweep": None,
            "fork": {"at_s": at_s},
        }

    def fork_job(self, policies: Mapping[str, PolicySpec]) -> ForkJob | None:
        """The common beginning of all runs; ``policies`` are the arms' resolved ones. None without a fork."""
        return None if self.fork is None else ForkJob(at_s=self.fork.at_s, policy=policies[self.baseline])

    def noise_seed(self, place: Place) -> int:
        """Seed of a modelled run's noise: its own for every run, since between-run drift is independent of the arm."""
        arm = "" if self.fork is not None else place.arm  # arms of a fork have their beginning in common
        text = f"{self.workload.seed}|{arm}|{place.repeat}"
        if place.load is not None:
            text += f"|{place.load:g}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
