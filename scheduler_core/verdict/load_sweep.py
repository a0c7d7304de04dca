"""Load sweeps: how much each arm carries at its objectives, where it bends, and which of two carries more.

A sweep of one arm shows load sensitivity, not a gain (R27). A paired sweep, both arms at three or more common loads,
is the strongest comparison: near the knee a small change of capacity moves a tail by tens of percent, so the ratio of
capacities is compared, not the tails, guarded by goodput.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.verdict.comparable import usable
from scheduler_core.verdict.decision import Ruling, rule
from scheduler_core.verdict.gates import Claim, judge
from scheduler_core.verdict.pairs import Changes, log_ratio, typical
from scheduler_core.verdict.schema import (
    EXIT_CODES,
    EXIT_NOT_COMPARABLE,
    ArmCapacity,
    Decision,
    LoadPoint,
    SweepVerdict,
)
from scheduler_core.verdict.wording import digits

LEAST_LOADS = 3
TAIL = "ttft_p95_ms"
GOODPUT_MARGIN = -0.02

Points = Mapping[float, Sequence[RunSummary]]


@dataclass(frozen=True, slots=True)
class SustainedLoad:
    """Of one arm in one repeat; ``load`` is the end of the range where it was not resolved."""

    load: float
    resolved: str


def capacity(shares: Mapping[float, float], attainment: float) -> SustainedLoad:
    """The highest load at which ``attainment`` is met, linear between the last load that met it and the next.

    ``shares`` maps load to attainment. Loads beyond the first miss do not count, even where luck met it again.
    """
    met: tuple[float, float] | None = None
    for load, share in sorted(shares.items()):
        if share < attainment:
            if met is None:
                return SustainedLoad(load, "below")
            low, above = met
            return SustainedLoad(low + (load - low) * (above - attainment) / (above - share), "within")
        met = (load, share)
    return SustainedLoad(met[0] if met else math.nan, "above")


def knee(curve: Mapping[float, float]) -> float | None:
    """The load at which ``curve`` bends upwards most: farthest below the chord of its ends, scaled to a unit square.

    None below three loads or where the curve rises by less than half: there is no knee to speak of.
    """
    rows = sorted(curve.items())
    if len(rows) < LEAST_LOADS or rows[0][1] <= 0 or rows[-1][1] < 1.5 * rows[0][1]:
        return None
    (x0, y0), (x1, y1) = rows[0], rows[-1]
    below = {x: (x - x0) / (x1 - x0) - (y - y0) / (y1 - y0) for x, y in rows}
    load = max(below, key=lambda x: below[x])
    return load if below[load] > 0 else None


def sweep_verdict(
    points: Points, *, baseline: str, candidate: str | None = None, unit: str = "requests/s",
    attainment: float = 0.95, better_by: float = 0.05,
) -> SweepVerdict:  # fmt: skip
    """Capacities of the arms over the loads of ``points``, and with a candidate which one carries more.

    Raises:
        InputError: fewer than three loads, or an arm without completed runs at one of them.
    """
    names = [baseline, *([candidate] if candidate else [])]
    arms = {name: _by_repeat(points, name) for name in names}
    found = [_arm(name, arms[name], points, unit, attainment) for name in names]
    if candidate is None:
        headline = f"load sensitivity of {baseline}, not a gain: {found[0].sentence}"
        return _sweep(points, found, None, headline, unit=unit, attainment=attainment)
    return _paired(points, found, arms, names, (unit, attainment, better_by))


def _paired(
    points: Points,
    found: list[ArmCapacity],
    arms: Mapping[str, dict[int, dict[float, RunSummary]]],
    names: Sequence[str],
    asked: tuple[str, float, float],
) -> SweepVerdict:
    unit, attainment, better_by = asked
    base, candidate = (arms[name] for name in names)
    repeats = sorted(base.keys() & candidate.keys())
    sides = [[capacity(_shares(arm[repeat]), attainment) for repeat in repeats] for arm in (base, candidate)]
    unresolved = [item for side in sides for item in side if item.resolved != "within"]
    if unresolved or not repeats:
        why = "no repeat has both arms" if not repeats else f"{len(unresolved)} capacities lie outside the loads"
        headline = f"not resolved: {why}; sweep from a load that every arm carries to one that none does"
        return _sweep(points, found, Ruling(Decision.TUNE, headline), headline, unit=unit, attainment=attainment)
    claims = [
        _claim("concurrency_capacity", "primary", better_by, [[item.load for item in side] for side in sides]),
        _claim("goodput_rps", "guard", GOODPUT_MARGIN,
               [[_goodput(arm[repeat]) for repeat in repeats] for arm in (base, candidate)]),
    ]  # fmt: skip
    gates = judge(claims, 0.95)
    ruling = rule(gates[0], gates[1:], pairs=len(repeats), exact=False)
    headline = f"{ruling.decision}: {found[1].sentence}; {found[0].sentence}; {ruling.reason}"
    result = _sweep(points, found, ruling, headline, unit=unit, attainment=attainment)
    return result.model_copy(update={"gates": gates})


def _sweep(
    points: Points, found: list[ArmCapacity], ruling: Ruling | None, headline: str, *, unit: str, attainment: float
) -> SweepVerdict:
    devices = "goodput is per device: every arm ran on one"
    shown = ", ".join(digits(load) for load in sorted(points))
    return SweepVerdict(
        unit=unit,
        loads=sorted(points),
        attainment=attainment,
        arms=found,
        decision=ruling.decision if ruling else None,
        headline=headline,
        gates=[],
        conditions=[f"loads {shown} {unit}, objectives met by {attainment * 100:g} % of offered requests", devices],
        exit_code=EXIT_CODES[ruling.decision] if ruling else EXIT_NOT_COMPARABLE,
    )


def _by_repeat(points: Points, arm: str) -> dict[int, dict[float, RunSummary]]:
    """repeat -> load -> run, repeats that are complete at every load."""
    if len(points) < LEAST_LOADS:
        raise InputError([Problem("loads", f"{len(points)} loads; a sweep needs at least {LEAST_LOADS}")])
    by_load = {load: usable(runs, arm) for load, runs in points.items()}
    empty = [digits(load) for load, runs in by_load.items() if not runs]
    if empty:
        raise InputError([Problem(arm, f"has no completed run at load {', '.join(empty)}")])
    repeats = set.intersection(*(set(runs) for runs in by_load.values()))
    return {repeat: {load: runs[repeat] for load, runs in by_load.items()} for repeat in sorted(repeats)}


def _arm(
    name: str, repeats: Mapping[int, Mapping[float, RunSummary]], points: Points, unit: str, attainment: float
) -> ArmCapacity:
    """Capacity over the mean attainment of all repeats, and the knee of the mean tail."""
    curve = [_point(load, [run[load] for run in repeats.values()]) for load in sorted(points)] if repeats else []
    found = capacity({point.load: point.attainment_share for point in curve}, attainment)
    tails = {point.load: point.ttft_p95_ms for point in curve if point.ttft_p95_ms is not None}
    bend = knee(tails)
    words = {"within": "carries", "above": "carries at least", "below": "carries less than"}[found.resolved]
    bent = f", its p95 TTFT bends at {digits(bend)}" if bend is not None else ""
    return ArmCapacity(
        arm=name,
        capacity=found.load if math.isfinite(found.load) else None,
        resolved=found.resolved,
        knee=bend,
        sentence=f"{name} {words} {digits(found.load)} {unit} at {attainment * 100:g} % attainment{bent}",
        curve=curve,
    )


def _point(load: float, runs: Sequence[RunSummary]) -> LoadPoint:
    """Means over the repeats at one load; the tail only where every repeat has it."""
    tails = [value for run in runs if (value := _value(run, TAIL)) is not None]
    return LoadPoint(
        load=load,
        attainment_share=sum(_value(run, "attainment_share") or 0.0 for run in runs) / len(runs),
        goodput_rps=sum(_value(run, "goodput_rps") or 0.0 for run in runs) / len(runs),
        ttft_p95_ms=sum(tails) / len(tails) if len(tails) == len(runs) else None,
    )


def _shares(run: Mapping[float, RunSummary]) -> dict[float, float]:
    return {load: _value(summary, "attainment_share") or 0.0 for load, summary in run.items()}


def _goodput(run: Mapping[float, RunSummary]) -> float:
    values = [_value(summary, "goodput_rps") or 0.0 for summary in run.values()]
    return sum(values) / len(values)


def _value(run: RunSummary, metric: str) -> float | None:
    figure = run.metrics.get(metric)
    return figure.value if figure is not None else None


def _claim(metric: str, role: str, margin: float, sides: Sequence[Sequence[float]]) -> Claim:
    old, new = sides
    unit = "requests/s"
    logs = tuple(log_ratio(before, after, unit) for before, after in zip(old, new, strict=True))
    evidence = Changes(logs, typical(old), typical(new), exact=False)
    return Claim(metric, "primary" if role == "primary" else "guard", margin, evidence)
