"""What a comparison asks, whether its runs were made here or elsewhere."""

from dataclasses import dataclass

from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.goal import GoalSpec


@dataclass(frozen=True, slots=True)
class Question:
    """Which arms, with which gates; ``spec`` is None for runs made elsewhere, then no experiment can be filled in."""

    name: str
    baseline: str
    candidates: tuple[str, ...]
    goal: GoalSpec
    repeats: int
    kind: str
    spec: ExperimentSpec | None = None

    @classmethod
    def of(cls, spec: ExperimentSpec) -> "Question":
        """The question that an experiment asks."""
        candidates = tuple(name for name in spec.arms if name != spec.baseline)
        return cls(spec.name, spec.baseline, candidates, spec.goal, spec.repeats, spec.target.kind, spec)
