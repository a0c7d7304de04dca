"""Geometry of figures drawn on the server as SVG: no script, printable, the same on every screen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.ui import readings
from scheduler_core.verdict import titles

WIDTH, HEIGHT = 380, 140
LEFT, RIGHT, TOP, BOTTOM = 40, 8, 10, 22


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis, in the figure's units."""

    at: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True)
class Figure:
    """A drawn figure: an outline, its ticks, and what it says in words."""

    area: str
    line: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    reading: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM
    rows: list[tuple[str, str]] = field(default_factory=list)


def _scale(low: float, high: float, start: float, end: float) -> Any:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def nice_step(span: float, wanted: int) -> float:
    """A step of 1, 2 or 5 times a power of ten that cuts ``span`` into about ``wanted`` parts."""
    if span <= 0:
        return 1.0
    raw = span / max(1, wanted)
    power = 10 ** math.floor(math.log10(raw))
    return float(next(step * power for step in (1, 2, 5, 10) if raw <= step * power * 1.0001))


def _ticks(high: float, wanted: int) -> list[float]:
    step = nice_step(high, wanted)
    return [step * index for index in range(math.floor(high / step + 1e-9) + 1)]


def arrival_curve(preview: Mapping[str, Any]) -> Figure | None:
    """Requests per second over time, as steps; None when no request has a time of its own."""
    curve = preview.get("arrivals") or {}
    counts: Sequence[int] = curve.get("counts") or []
    bucket_s = float(curve.get("bucket_s") or 0)
    if len(counts) < 2 or bucket_s <= 0:
        return None
    rates = [count / bucket_s for count in counts]
    top = max(rates) or 1.0
    span = bucket_s * len(counts)
    x = _scale(0, span, LEFT, WIDTH - RIGHT)
    y = _scale(0, top * 1.08, HEIGHT - BOTTOM, TOP)
    points = []
    for index, rate in enumerate(rates):
        points += [(x(index * bucket_s), y(rate)), (x((index + 1) * bucket_s), y(rate))]
    line = "M" + " L".join(f"{px:.1f},{py:.1f}" for px, py in points)
    area = f"{line} L{x(span):.1f},{HEIGHT - BOTTOM} L{LEFT},{HEIGHT - BOTTOM} Z"
    mean = sum(counts) / span
    reading = (
        f"{readings.number(mean)} requests/s on average, at most {readings.number(top)} in any "
        f"{readings.duration(bucket_s)}, over {readings.duration(span)}."
    )
    return Figure(
        area,
        line,
        [Tick(x(at), readings.duration(at)) for at in _ticks(span, 5)],
        [Tick(y(at), readings.number(at), "end") for at in _ticks(top * 1.08, 3)],
        reading,
        rows=[(readings.duration(i * bucket_s), readings.number(rate)) for i, rate in enumerate(rates)],
    )


def quantile_curve(quantiles: Mapping[str, float]) -> Figure | None:
    """A length distribution: tokens over the share of requests that are at most that long."""
    points = sorted((float(name.removeprefix("p")) / 100, float(value)) for name, value in quantiles.items())
    if len(points) < 2:
        return None
    top = points[-1][1] or 1.0
    x = _scale(0, 1, LEFT, WIDTH - RIGHT)
    y = _scale(0, top * 1.05, HEIGHT - BOTTOM, TOP)
    line = "M" + " L".join(f"{x(share):.1f},{y(value):.1f}" for share, value in points)
    area = f"{line} L{x(1):.1f},{HEIGHT - BOTTOM} L{x(points[0][0]):.1f},{HEIGHT - BOTTOM} Z"
    median = dict(points).get(0.5)
    reading = (
        f"Half of the requests have at most {readings.number(median)} tokens; the longest has {readings.number(top)}."
    )
    return Figure(
        area,
        line,
        [Tick(x(share), f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)],
        [Tick(y(at), readings.number(at), "end") for at in _ticks(top * 1.05, 3)],
        reading,
        rows=[(f"p{share * 100:g}", readings.number(value)) for share, value in points],
    )


@dataclass(frozen=True)
class IntervalBar:
    """A gate's interval on a scale around zero, with the zone in which the gate passes."""

    width: int
    zero: float
    zone_start: float
    zone_width: float
    low: float | None
    high: float | None
    dot: float
    low_text: str
    high_text: str
    margin_text: str


BAR_WIDTH = 240


def interval_bar(gate: Mapping[str, Any]) -> IntervalBar | None:
    """Geometry of a gate's interval; None when there is no change to draw.

    The passing zone of a primary lies beyond its margin on the better side, that of a guard reaches from the better
    side up to its margin on the worse side.
    """
    change = gate.get("change")
    if change is None:
        return None
    interval = gate.get("interval") or {}
    low, high = interval.get("low"), interval.get("high")
    sign = -1.0 if gate["better"] == "lower" else 1.0
    margin = abs(float(gate["margin"])) * (sign if gate["role"] == "primary" else -sign)
    reach = max(abs(value) for value in (low or 0.0, high or 0.0, change, margin, 0.02)) * 1.2
    x = _scale(-reach, reach, 0, BAR_WIDTH)
    zone = (x(-reach), x(margin)) if sign < 0 else (x(margin), x(reach))
    return IntervalBar(
        width=BAR_WIDTH,
        zero=x(0),
        zone_start=zone[0],
        zone_width=max(0.0, zone[1] - zone[0]),
        low=None if low is None else x(low),
        high=None if high is None else x(high),
        dot=x(change),
        low_text=readings.change(low),
        high_text=readings.change(high),
        margin_text=readings.change(margin),
    )


DOTS_WIDTH = 220


@dataclass(frozen=True)
class Dot:
    """One repeat of one arm."""

    x: float
    text: str


@dataclass(frozen=True)
class DotRow:
    """One arm's repeats of a metric, with their mean."""

    name: str
    dots: list[Dot]
    mean: float | None
    mean_text: str


@dataclass(frozen=True)
class DotPlot:
    """A metric's values of all arms on one scale."""

    metric: str
    title: str
    unit: str
    rows: list[DotRow]
    low_text: str
    high_text: str


def dot_plot(metric: str, values: Mapping[str, Sequence[float | None]]) -> DotPlot | None:
    """Values of each arm's repeats; None when there is not one."""
    present = [value for series in values.values() for value in series if value is not None]
    if not present:
        return None
    low, high = min(present), max(present)
    pad = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    x = _scale(low - pad, high + pad, 0, DOTS_WIDTH)
    rows = []
    for name, series in values.items():
        given = [(repeat, value) for repeat, value in enumerate(series, 1) if value is not None]
        mean = sum(value for _, value in given) / len(given) if given else None
        dots = [Dot(x(value), f"repeat {repeat}: {readings.number(value)}") for repeat, value in given]
        rows.append(DotRow(name, dots, None if mean is None else x(mean), readings.number(mean)))
    title, unit = titles.metric_title(metric), titles.metric_unit(metric)
    return DotPlot(metric, title, unit, rows, readings.number(low), readings.number(high))
