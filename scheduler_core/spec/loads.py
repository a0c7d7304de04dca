"""A workload at another load: the same traffic, sent at another rate or by another number of users."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from scheduler_core.spec.base import PositiveFloat, Spec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.types.errors import InputError, Problem

LEAST_LOADS = 3

RATE, USERS = "requests/s", "users"
_RATED = ("constant", "poisson", "gamma", "quantiles")


class SweepSpec(Spec):
    """Every arm at every load instead of at the workload's own: how much each carries, and which carries more."""

    loads: Annotated[tuple[PositiveFloat, ...], Field(min_length=LEAST_LOADS, max_length=20)] = Field(
        description="At least three different loads: requests/s, or users of a closed-loop workload. Choose the lowest "
        "so that every arm carries it and the highest so that none does.",
    )
    attainment: float = Field(
        0.95, gt=0, le=1, description="Share of offered requests that must meet the objectives of their tier."
    )

    @model_validator(mode="after")
    def _different(self) -> Self:
        if len(set(self.loads)) < len(self.loads):
            raise ValueError("loads: each load once")
        return self


def load_unit(workload: WorkloadSpec) -> str:
    """What a load of ``workload`` is counted in: `RATE`, or `USERS` in a closed loop.

    Raises:
        InputError: the workload has no one load: its rate changes on purpose.
    """
    if workload.arrivals is None:
        return RATE
    kind = next(name for name, value in workload.arrivals if value is not None)
    if kind == "closed":
        return USERS
    if kind in _RATED:
        return RATE
    raise InputError(
        [Problem(f"workload.arrivals.{kind}", f"has no one rate; a load needs {', '.join(_RATED)} or closed")]
    )


def at_load(workload: WorkloadSpec, load: float) -> WorkloadSpec:
    """``workload`` at ``load``, in its `load_unit`; nothing else differs.

    Raises:
        InputError: it has no one load, or a number of users is not whole.
    """
    unit = load_unit(workload)
    if unit == USERS and load != int(load):
        raise InputError([Problem("loads", f"{load:g} users; a closed loop has whole users")])
    form: dict[str, Any] = workload.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    if workload.profile is not None:
        form["rate_rps"] = load
    elif workload.trace is not None:
        form["trace"]["rate_rps"] = load
    else:
        (held,) = form["arrivals"].values()
        held["concurrency" if unit == USERS else "rate_rps"] = int(load) if unit == USERS else load
    return parse(WorkloadSpec, form)
