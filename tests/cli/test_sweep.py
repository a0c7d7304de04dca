"""``headway sweep``: capacities at the objectives on the modelled target, for one arm and for two."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import EXPERIMENT, Headway

# Capacity is where 95 % of requests have their first token within 400 ms.
WORKLOAD: dict[str, Any] = {**EXPERIMENT["workload"], "tiers": {"default": {"ttft_ms": 400}}}
RATES = "8,16,32,64,128"


def test_two_arms_give_the_ratio_of_their_capacities(
    headway: Headway, written: Callable[..., Path], tmp_path: Path
) -> None:
    """Static batches of 8 stop to keep up between 16 and 64 requests/s; chunked prefill carries more."""
    file = written(workload=WORKLOAD, target={"torch": {}}, repeats=5)
    ran = headway("sweep", file, "--rates", RATES, "--target", "modelled", "--evidence", tmp_path / "kept", "--json")
    found = json.loads(ran.out)
    (verdict,) = found["verdict"]["sweeps"]
    assert (ran.status, verdict["decision"], verdict["loads"]) == (0, "accept", [8, 16, 32, 64, 128])
    base, chunked = (arm["capacity"] for arm in verdict["arms"])
    assert 16 < base < 64 < chunked < 128
    assert [point["load"] for point in verdict["arms"][0]["curve"]] == verdict["loads"]
    assert [len(point["runs"]) for point in found["points"]] == [10] * 5
    assert {run["level"] for run in found["runs"]} == {"simulation"}
    assert len(list((tmp_path / "kept").glob("run-*"))) == 50


def test_one_arm_is_said_to_be_load_sensitivity(headway: Headway, written: Callable[..., Path]) -> None:
    file = written(workload=WORKLOAD, arms={"alone": {"policy": "static", "batch": {"size": 8}}})
    ran = headway("sweep", file, "--rates", RATES)
    assert ran.status == 30
    assert ran.out.startswith("no decision load sensitivity of alone, not a gain: alone carries ")
    assert "16 requests/s: objectives met 100 %" in ran.out


def test_without_objectives_nothing_bounds_the_load_and_that_is_said(
    headway: Headway, written: Callable[..., Path]
) -> None:
    ran = headway("sweep", written(repeats=1), "--rates", "8,16,32")
    assert ran.status == 10
    assert "tier default has no objectives" in ran.err
    assert "not resolved" in ran.out


@pytest.mark.parametrize(
    ("rates", "changes", "message"),
    [
        ("2,4", {}, "sweep.loads"),
        ("2,2,2", {}, "loads: each load once"),
        ("0,2,4", {}, "sweep.loads"),
        ("2,x,4", {}, "write numbers such as 2,4,6,8"),
        ("2,4,nan", {}, "sweep.loads"),
        (
            "2,4,6",
            {"workload": {**WORKLOAD, "arrivals": {"ramp": {"from_rps": 1, "to_rps": 2, "over_s": 3}}}},
            "has no one rate",
        ),
        ("2,4,6", {"target": 5}, "target"),
    ],
)
def test_wrong_loads_are_refused_before_anything_runs(
    headway: Headway, written: Callable[..., Path], rates: str, changes: dict[str, Any], message: str
) -> None:
    ran = headway("sweep", written(**changes), "--rates", rates)
    assert ran.status in (1, 2)
    assert message in ran.err
    assert "run 1 of" not in ran.err
