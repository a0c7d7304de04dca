"""The experiment spec: one workload, one target, two or more arms, one goal."""

import hashlib
from typing import Annotated

from pydantic import Field

from scheduler_core.spec.base import Name, Spec
from scheduler_core.spec.goal import GoalSpec
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import TargetSpec
from scheduler_core.spec.workload import WorkloadSpec


class ExperimentSpec(Spec):
    """What is compared, on what, how often, and what counts as better.

    The arm named ``baseline``, or else the first, is the baseline. Two equal arms are an A/A test, which a verdict
    says.
    """

    name: Name
    workload: WorkloadSpec
    target: TargetSpec = TargetSpec.model_validate({"torch": {}})
    arms: dict[Name, PolicySpec] = Field(min_length=1, max_length=16)
    repeats: Annotated[int, Field(ge=1, le=100)] = 5
    goal: GoalSpec = GoalSpec()
    run_limit_s: float = Field(
        600.0, gt=0, le=86_400, description="Longest a run may take before it is stopped as failed."
    )

    @property
    def baseline(self) -> str:
        """Name of the arm that the others are compared with."""
        return "baseline" if "baseline" in self.arms else next(iter(self.arms))

    def runs(self) -> list[tuple[int, str]]:
        """(repeat, arm) in the order they are run: interleaved, and rotated so that no arm always goes first."""
        names = list(self.arms)
        return [
            (repeat, names[(place + repeat) % len(names)])
            for repeat in range(self.repeats)
            for place in range(len(names))
        ]

    def noise_seed(self, *, arm: str, repeat: int) -> int:
        """Seed of a modelled run's noise: its own for every run, since between-run drift is independent of the arm."""
        text = f"{self.workload.seed}|{arm}|{repeat}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
