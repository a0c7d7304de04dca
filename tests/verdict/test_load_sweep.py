"""Capacity at the objectives, the knee, and paired sweeps."""

import random

import pytest

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.capacity import capacity, knee
from scheduler_core.verdict.load_sweep import sweep_verdict
from tests.verdict.arms import summary

LOADS = (2.0, 4.0, 6.0, 8.0)


def points(carries: dict[str, float], repeats: int = 5, noise: float = 0.02) -> dict[float, list[RunSummary]]:
    """Arms whose attainment falls linearly from 1 and crosses 95 % near the load they carry."""
    draw = random.Random(9)
    found: dict[float, list[RunSummary]] = {load: [] for load in LOADS}
    for repeat in range(repeats):
        for arm, most in carries.items():
            limit = most * (1 + draw.gauss(0, noise))
            for load in LOADS:
                share = min(1.0, max(0.0, 0.95 - 0.1 * (load - limit)))
                good = load * share
                figures = {"attainment_share": share, "goodput_rps": good, "goodput_per_device_rps": good,
                           "ttft_p95_ms": 50 + 2**load}  # fmt: skip
                found[load].append(summary(arm, repeat, figures))
    return found


def test_capacity_is_where_attainment_is_crossed() -> None:
    """99 % at 4, 91 % at 6: 95 % lies half-way, at 5. Outside the loads it is not resolved."""
    assert capacity({2: 1.0, 4: 0.99, 6: 0.91, 8: 0.99}, 0.95).load == pytest.approx(5)
    assert (capacity({2: 1.0, 4: 0.99}, 0.95).load, capacity({2: 1.0, 4: 0.99}, 0.95).resolved) == (4, "above")
    assert capacity({2: 0.5, 4: 0.2}, 0.95).resolved == "below"


def test_knee_is_where_the_tail_bends() -> None:
    """Flat to 6, then steep: the point farthest below the chord is 6. A line has no knee, nor has a flat curve."""
    assert knee({2: 100, 4: 105, 6: 120, 8: 900}) == 6
    assert knee({2: 100, 4: 200, 6: 300}) is None
    assert knee({2: 100, 4: 101, 6: 102}) is None


def test_one_arm_is_load_sensitivity_not_a_gain() -> None:
    """Attainment is 1 at 4 and 0.85 at 6 (0.95 - 0.1 x 1): 95 % is crossed at 4 + 2 x 0.05 / 0.15 = 4.67."""
    found = sweep_verdict(points({"baseline": 5}), baseline="baseline")
    assert (found.decision, found.exit_code) == (None, 30)
    assert "load sensitivity of baseline, not a gain" in found.headline
    assert found.arms[0].capacity == pytest.approx(4.67, abs=0.2)


def test_a_sweep_of_exact_runs_has_no_interval() -> None:
    """Without noise every repeat says the same: one repeat decides, and no interval is made up."""
    exact = {"target": {"modelled": {"noise": False}}}
    runs = points({"baseline": 4, "candidate": 5.5}, repeats=1, noise=0.0)
    runs = {load: [run.model_copy(update=exact) for run in arms] for load, arms in runs.items()}
    found = sweep_verdict(runs, baseline="baseline", candidate="candidate")
    assert (found.decision, found.gates[0].interval) == ("accept", None)
    assert "exact, no interval" in found.gates[0].sentence


def test_paired_sweep_accepts_more_capacity() -> None:
    found = sweep_verdict(points({"baseline": 4, "candidate": 5.5}), baseline="baseline", candidate="candidate")
    assert (found.decision, found.exit_code) == ("accept", 0)
    assert [gate.metric for gate in found.gates] == ["concurrency_capacity", "goodput_per_device_rps"]
    assert found.gates[0].interval is not None and found.gates[0].interval.low > 0.05


def test_paired_sweep_of_equal_arms_shows_no_gain() -> None:
    found = sweep_verdict(points({"baseline": 5, "candidate": 5}), baseline="baseline", candidate="candidate")
    assert found.decision in ("reject", "tune")
    assert found.gates[0].label == "same"


def test_unresolved_capacity_asks_for_other_loads() -> None:
    found = sweep_verdict(points({"baseline": 5, "candidate": 20}), baseline="baseline", candidate="candidate")
    assert found.decision == "tune"
    assert "not resolved" in found.headline


def test_too_few_loads_are_refused() -> None:
    two = {load: runs for load, runs in points({"baseline": 5}).items() if load < 5}
    with pytest.raises(InputError, match="at least 3"):
        sweep_verdict(two, baseline="baseline")
