"""A workload at another load: the same traffic, sent at another rate or by another number of users."""

from typing import Any

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.types.errors import InputError, Problem

RATE, USERS = "requests/s", "users"
_RATED = ("constant", "poisson", "gamma", "quantiles")


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
