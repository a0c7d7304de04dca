"""The experiment spec: one workload, one target, two or more arms, one goal."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from scheduler_core.spec.base import Name, Spec
from scheduler_core.spec.goal import GoalSpec
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import TargetSpec
from scheduler_core.spec.workload import WorkloadSpec


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

    def first_pairs(self) -> int:
        """Pairs that are run before the verdict is asked for the first time."""
        return next((look for look in self.goal.looks if look >= self.repeats), self.repeats)

    def runs(self, repeats: Iterable[int] | None = None) -> list[tuple[int, str]]:
        """(repeat, arm) in the order they are run: interleaved, and rotated so that no arm always goes first.

        Of ``repeats`` (from 0), by default those of the first pairs.
        """
        names = list(self.arms)
        return [
            (repeat, names[(place + repeat) % len(names)])
            for repeat in (range(self.first_pairs()) if repeats is None else repeats)
            for place in range(len(names))
        ]

    def noise_seed(self, *, arm: str, repeat: int) -> int:
        """Seed of a modelled run's noise: its own for every run, since between-run drift is independent of the arm."""
        text = f"{self.workload.seed}|{arm}|{repeat}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
