"""The same workload at another load: only the load differs, and what has no one load is refused."""

from typing import Any

import pytest

from scheduler_core.spec.loads import RATE, USERS, at_load, load_unit
from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.types.errors import InputError

LENGTHS = {"prompt": {"fixed": 8}, "output": {"fixed": 4}}


def workload(**fields: Any) -> WorkloadSpec:
    base = {"requests": 10, "seed": 4, "lengths": LENGTHS} if "arrivals" in fields else {"requests": 10}
    return parse(WorkloadSpec, {**base, **fields})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"arrivals": {"poisson": {"rate_rps": 2}}}, {"arrivals": {"poisson": {"rate_rps": 6.5}}}),
        ({"arrivals": {"constant": {"rate_rps": 2}}}, {"arrivals": {"constant": {"rate_rps": 6.5}}}),
        (
            {"arrivals": {"gamma": {"rate_rps": 2, "burstiness": 0.5}, "poisson": None}},
            {"arrivals": {"gamma": {"rate_rps": 6.5, "burstiness": 0.5}}},
        ),
        ({"profile": "azure-2023-conv", "rate_rps": 1}, {"profile": "azure-2023-conv", "rate_rps": 6.5}),
        ({"trace": {"file": "t.csv"}}, {"trace": {"file": "t.csv", "rate_rps": 6.5}}),
    ],
)
def test_only_the_rate_is_replaced(written: dict[str, Any], expected: dict[str, Any]) -> None:
    assert load_unit(workload(**written)) == RATE
    assert at_load(workload(**written), 6.5) == workload(**expected)


def test_a_closed_loop_has_whole_users() -> None:
    closed = workload(arrivals={"closed": {"concurrency": 2, "think_s": 1}})
    assert load_unit(closed) == USERS
    assert at_load(closed, 8) == workload(arrivals={"closed": {"concurrency": 8, "think_s": 1}})
    with pytest.raises(InputError, match=r"2.5 users; a closed loop has whole users"):
        at_load(closed, 2.5)


@pytest.mark.parametrize(
    "arrivals",
    [{"ramp": {"from_rps": 1, "to_rps": 2, "over_s": 3}}, {"step": {"stages": [{"rate_rps": 1, "for_s": 2}]}}],
)
def test_a_changing_rate_is_no_load(arrivals: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="has no one rate"):
        at_load(workload(arrivals=arrivals), 3)


@pytest.mark.parametrize("load", [0.0, -1.0, float("nan"), float("inf")])
def test_a_load_must_be_a_rate(load: float) -> None:
    with pytest.raises(InputError, match="rate_rps"):
        at_load(workload(arrivals={"poisson": {"rate_rps": 2}}), load)
