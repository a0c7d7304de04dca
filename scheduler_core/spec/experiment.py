"""The experiment spec: one workload, one target, two or more arms, one goal."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from scheduler_core.spec.base import Name, Spec
from scheduler_core.spec.events import EventsSpec
from scheduler_core.spec.fork import ForkJob, ForkSpec
from scheduler_core.spec.goal import GoalSpec
from scheduler_core.spec.isolation import IsolationSpec, times_words
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
    isolation: IsolationSpec | None = Field(
        None,
        description="Play every arm with fewer and with more requests of everybody but one tenant or tier. The verdict "
        "then compares how much that one feels of the others, goal.better_by being the margin.",
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
    def _isolable(self) -> Self:
        asked = self.isolation
        if asked is None:
            return self
        clash = [name for name in ("sweep", "fork") if getattr(self, name) is not None]
        if clash or self.goal.looks or self.workload.others is not None:
            what = (clash or (["goal.looks"] if self.goal.looks else ["workload.others"]))[0]
            raise ValueError(f"isolation: cannot be combined with {what}")
        known = self.workload.tiers if asked.tier is not None else self.workload.tenants
        if self.workload.trace is None and asked.who not in known:
            raise ValueError(f"isolation.{asked.kind}: there is no {asked.who!r}; there are {', '.join(known)}")
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
        """Loads in rising order, of a sweep or of the others; only None, the workload's own, without either."""
        if self.isolation is not None:
            return tuple(map(float, self.isolation.others))
        return (None,) if self.sweep is None else tuple(sorted(self.sweep.loads))

    def workload_at(self, load: float | None) -> WorkloadSpec:
        """The workload at one of `loads`."""
        if load is None:
            return self.workload
        if self.isolation is not None:
            return self.workload.model_copy(update={"others": self.isolation.at(load)})
        return at_load(self.workload, load)

    def at_words(self, load: float | None) -> str:
        """What follows an arm's name where it is played at ``load``; nothing at the workload's own."""
        if load is None:
            return ""
        return f" {times_words(load)}" if self.isolation is not None else f" at {load:g}"

    def first_pairs(self) -> int:
        """Pairs that are run before the verdict is asked for the first time."""
        return next((look for look in self.goal.looks if look >= self.repeats), self.repeats)

    def runs(self, repeats: Iterable[int] | None = None) -> list[Place]:
        """Runs in the order they are made: arms interleaved, their turns drawn for each repeat.

        Of ``repeats`` (from 0), by default those of the first pairs; each repeat is complete before the next begins.
        Any fixed pattern of turns, a strict alternation too, can fall in step with something periodic on the machine,
        which then looks like an effect; drawn turns make it noise. The draw is a function of the workload's seed.
        """
        return [
            Place(repeat, arm, load)
            for repeat in (range(self.first_pairs()) if repeats is None else repeats)
            for load in self.loads
            for arm in sorted(self.arms, key=lambda arm: self._turn(arm, repeat, load))
        ]

    def _turn(self, arm: str, repeat: int, load: float | None) -> bytes:
        """What orders the arms of a repeat: as good as drawn, and the same in every process."""
        return hashlib.blake2b(f"{self.workload.seed}|{load}|{repeat}|{arm}".encode(), digest_size=8).digest()

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
