"""Studies: questions that take more than one experiment, each experiment made from what the one before found."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from scheduler_core.spec.base import Name, Seed, Spec
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.goal import GoalSpec, MetricName
from scheduler_core.spec.policy import SECTIONS, PolicySpec
from scheduler_core.spec.target import TargetSpec
from scheduler_core.spec.variants import turned
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.types.errors import InputError

Repeats = Annotated[int, Field(ge=1, le=100)]
Limit = Annotated[float, Field(gt=0, le=86_400)]


class GuidedSpec(Spec):
    """A plan from the reference to a tuned policy: one layer after another, each from what the one before accepted."""

    name: Annotated[Name, Field(max_length=40)]
    workload: WorkloadSpec
    target: TargetSpec = TargetSpec.model_validate({"torch": {}})
    start: PolicySpec = Field(
        PolicySpec.model_validate({"policy": "static", "batch": {"size": 8}}),
        description="The reference: what the first stage starts from and the last compares the outcome with.",
    )
    repeats: Repeats = Field(5, description="Pairs of runs in every stage.")
    goal: GoalSpec = GoalSpec()
    run_limit_s: Limit = Field(600.0, description="Longest a run may take before it is stopped as failed.")


def _as_words(value: object) -> object:
    """Numbers, truth values and words of a list, or separated by commas, as they are written."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return value
    return tuple(
        str(item).lower() if isinstance(item, bool) else item.strip() if isinstance(item, str) else f"{item:g}"
        if isinstance(item, float) else str(item)
        for item in items
    )  # fmt: skip


class Dimension(Spec):
    """What may be chosen for one parameter: some values, or a range of numbers."""

    values: Annotated[tuple[str, ...], BeforeValidator(_as_words)] = Field(
        (), max_length=50, description="Choices, such as 128, 512, 2048, or arrival, priority."
    )
    low: float | None = Field(None, description="Lower end of a range, instead of values.")
    high: float | None = Field(None, description="Upper end of the range.")
    scale: Literal["linear", "log"] = Field("log", description="How the range is divided: evenly, or by ratios.")
    whole: bool = Field(True, description="Whether the range has whole numbers only.")
    points: int = Field(5, ge=2, le=20, description="Values of the range that a grid search takes.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        ranged = self.low is not None or self.high is not None
        if bool(self.values) == ranged:
            raise ValueError("give either values or a range with low and high")
        if ranged and (self.low is None or self.high is None or self.low >= self.high):
            raise ValueError("a range needs low below high")
        if ranged and self.scale == "log" and (self.low or 0) <= 0:
            raise ValueError("low: a range divided by ratios begins above 0; set scale: linear")
        return self

    def at(self, share: float) -> str:
        """The value at ``share`` (0 to 1) of the dimension, as it is written in a policy."""
        if self.values:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        assert self.low is not None and self.high is not None  # validated above
        if self.scale == "log":
            found = self.low * (self.high / self.low) ** share
        else:
            found = self.low + (self.high - self.low) * share
        return str(round(found)) if self.whole else f"{found:.6g}"

    def grid(self) -> list[str]:
        """The values that a grid search takes, each once."""
        if self.values:
            return list(self.values)
        return list(dict.fromkeys(self.at(number / (self.points - 1)) for number in range(self.points)))


class ConfirmSpec(Spec):
    """The experiment that tries the best of a search on a real target, against the base policy."""

    target: TargetSpec = TargetSpec.model_validate({"torch": {}})
    best: int = Field(2, ge=1, le=8, description="How many of the best policies are tried.")
    repeats: Repeats = 5
    goal: GoalSpec = GoalSpec()
    run_limit_s: Limit = 600.0


class SearchSpec(Spec):
    """A search for policies on the modelled target: cost, throughput and a tail, and what no other policy beats."""

    name: Annotated[Name, Field(max_length=40)]
    workload: WorkloadSpec
    target: TargetSpec = TargetSpec.model_validate({"modelled": {}})
    base: PolicySpec = Field(
        PolicySpec.model_validate({"policy": "vllm_v1"}),
        description="What every policy tried starts from, and what the best are compared with.",
    )
    space: dict[str, Dimension] = Field(
        min_length=1,
        max_length=12,
        description="Parameters and what may be chosen for each: policy, or a section and its setting, such as "
        "batch.token_budget. On a cluster also what it consists of: pools.hold.GROUP (instances of a group), "
        "pools.layout, pools.prefill, pools.route.",
    )
    method: Literal["grid", "random", "tpe"] = Field(
        "tpe", description="Every combination; combinations at random; or a tree of Parzen estimators, which learns."
    )
    trials: int = Field(40, ge=1, le=2000, description="Most policies that are played.")
    seed: Seed = 0
    tail: MetricName = Field("ttft_p95_ms", description="The tail that is to be short.")
    confirm: ConfirmSpec | None = Field(
        None, description="Try the best on a real target when the search has ended; absent: the search is all."
    )

    @model_validator(mode="after")
    def _searchable(self) -> Self:
        if self.target.modelled is None:
            raise ValueError("target: a search plays many policies, so it needs the modelled target")
        for name, dimension in self.space.items():
            section = name.partition(".")[0]
            if name != "policy" and section not in SECTIONS:
                raise ValueError(f"space.{name}: is no setting of a policy; name policy or SECTION.SETTING")
            for value in dimension.grid():
                try:
                    turned(self.base, {name: value})
                except InputError as error:
                    raise ValueError(f"space.{name}: {value} cannot be set: {error}") from None
        return self

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Every combination of the grid, the last parameter changing quickest."""
        yield from _combined(list(self.space.items()))


class PredictionSpec(Spec):
    """How much each arm will carry, written down from a calibrated profile before the experiment that measures it."""

    profile: str = Field(
        "auto",
        max_length=64,
        description="The profile to predict with, such as one that calibration made of the server; auto: the newest.",
    )
    experiment: ExperimentSpec = Field(
        description="The load sweep that is predicted, and then confirms or refutes it, on a real target."
    )

    @model_validator(mode="after")
    def _confirmable(self) -> Self:
        if self.experiment.sweep is None:
            raise ValueError("experiment.sweep: a prediction is of how much each arm carries, so it needs loads")
        if self.experiment.target.modelled is not None:
            raise ValueError("experiment.target: is modelled; a prediction is confirmed by a server or by kernels")
        served = [name for name, policy in self.experiment.arms.items() if policy.policy == "as_served"]
        if served:
            raise ValueError(
                f"experiment.arms.{served[0]}: as_served says nothing to predict from; state the policy that the "
                "server runs, such as vllm_v1 with its batch.token_budget"
            )
        return self

    @property
    def name(self) -> str:
        """That of the experiment."""
        return self.experiment.name


def _combined(left: list[tuple[str, Dimension]]) -> Iterator[dict[str, Any]]:
    if not left:
        yield {}
        return
    (name, dimension), *rest = left
    for value in dimension.grid():
        for further in _combined(rest):
            yield {name: value, **further}
