"""How much load an arm carries at its objectives, and where its tail bends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.loads import LEAST_LOADS
from scheduler_core.verdict.pairs import Changes
from scheduler_core.verdict.schema import ArmCapacity, LoadPoint
from scheduler_core.verdict.wording import digits

TAIL = "ttft_p95_ms"
LEAST_REPEATS = 2


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


def arm_capacity(
    name: str, repeats: Mapping[int, Mapping[float, RunSummary]], *, unit: str, attainment: float, confidence: float
) -> ArmCapacity:
    """Capacity over the mean attainment of all repeats (repeat -> load -> run), and the knee of the mean tail."""
    low, high = _bounds([capacity(attained(run), attainment) for run in repeats.values()], confidence)
    loads = sorted(next(iter(repeats.values()), {}))
    curve = [_point(load, [run[load] for run in repeats.values()]) for load in loads]
    found = capacity({point.load: point.attainment_share for point in curve}, attainment)
    bend = knee({point.load: point.ttft_p95_ms for point in curve if point.ttft_p95_ms is not None})
    words = {"within": "carries", "above": "carries at least", "below": "carries less than"}[found.resolved]
    bent = f", its p95 TTFT bends at {digits(bend)}" if bend is not None else ""
    known = math.isfinite(found.load)
    sentence = f"{name} {words} {digits(found.load)} {unit} at {attainment * 100:g} % attainment{bent}"
    return ArmCapacity(
        arm=name,
        capacity=found.load if known else None,
        low=low,
        high=high,
        resolved=found.resolved,
        knee=bend,
        sentence=sentence if known else f"{name} has no repeat that was complete at every load",
        curve=curve,
    )


def _bounds(found: Sequence[SustainedLoad], confidence: float) -> tuple[float | None, float | None]:
    """Interval of the geometric mean; None, None where a repeat did not resolve its capacity, or there is but one."""
    if len(found) < LEAST_REPEATS or any(item.resolved != "within" or item.load <= 0 for item in found):
        return None, None
    spread = Changes(tuple(math.log(item.load) for item in found), None, None, exact=False)
    low, high = spread.bounds(confidence)
    return math.exp(low), math.exp(high)


def attained(run: Mapping[float, RunSummary]) -> dict[float, float]:
    """Attainment by load of one repeat."""
    return {load: value(summary, "attainment_share") or 0.0 for load, summary in run.items()}


def value(run: RunSummary, metric: str) -> float | None:
    """A figure of a run; None where it has none."""
    figure = run.metrics.get(metric)
    return figure.value if figure is not None else None


def _point(load: float, runs: Sequence[RunSummary]) -> LoadPoint:
    """Means over the repeats at one load; the tail only where every repeat has it."""
    tails = [found for run in runs if (found := value(run, TAIL)) is not None]
    return LoadPoint(
        load=load,
        attainment_share=sum(value(run, "attainment_share") or 0.0 for run in runs) / len(runs),
        goodput_rps=sum(value(run, "goodput_rps") or 0.0 for run in runs) / len(runs),
        ttft_p95_ms=sum(tails) / len(tails) if len(tails) == len(runs) else None,
    )
