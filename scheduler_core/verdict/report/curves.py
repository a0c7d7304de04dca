"""Curves over load, and fields of points, as inline SVG with the figures beside as a table.

The markup uses only the classes ``figure``, ``grid``, ``axis``, ``note``, ``more`` and ``s1`` to ``s6`` (colours), so
that pages and offline reports show the same picture in their own colours.
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.verdict.schema import SweepVerdict
from scheduler_core.verdict.wording import digits

WIDTH, HEIGHT = 380, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 36
_COLOURS = 6

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axes:
    """What is drawn over what; ``level`` is a horizontal line to be met, ``joined`` whether points form curves."""

    title: str
    x: str
    y: str
    level: float | None = None
    joined: bool = True


def sweep_charts(sweep: SweepVerdict) -> str:
    """Attainment, goodput and tail over load, one curve per arm."""
    share = {arm.arm: [(point.load, point.attainment_share * 100) for point in arm.curve] for arm in sweep.arms}
    good = {arm.arm: [(point.load, point.goodput_rps) for point in arm.curve] for arm in sweep.arms}
    tail = {
        arm.arm: [(point.load, point.ttft_p95_ms) for point in arm.curve if point.ttft_p95_ms is not None]
        for arm in sweep.arms
    }
    load = f"load, {sweep.unit}"
    return (
        curves(Axes("Objectives met, %", load, "objectives met, %", sweep.attainment * 100), share)
        + curves(Axes("Goodput, requests/s", load, "goodput, requests/s"), good)
        + curves(Axes("p95 TTFT, ms", load, "p95 TTFT, ms"), tail)
    )


def curves(axes: Axes, series: Mapping[str, Sequence[Point]]) -> str:
    """One figure of all ``series`` by name; empty where none has a point."""
    points = [point for drawn in series.values() for point in drawn]
    if not points:
        return ""
    frame = _Frame.around(points, axes.level)
    parts = frame.axes()
    if axes.level is not None:
        at = frame.y(axes.level)
        parts.append(f'<line class="grid" stroke-dasharray="4 3" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" {_at("y", at)}/>')
    for number, (name, drawn) in enumerate(series.items()):
        parts.append(_series(frame, name, drawn, number, joined=axes.joined))
    label = f"{axes.y} over {axes.x}, {', '.join(series)}"
    parts.append(_text(WIDTH - _RIGHT, HEIGHT - 2, axes.x, "end"))
    legend = " ".join(
        f'<span class="s{number % _COLOURS + 1}">&#9679;</span> {html.escape(name)}'
        for number, name in enumerate(series)
    )
    return (
        f'<figure class="figure"><figcaption><strong>{html.escape(axes.title)}</strong></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
        f'<p class="note">{legend}</p>{_table(axes, series)}</figure>'
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """Data ranges, from which places in the picture follow."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @classmethod
    def around(cls, points: Sequence[Point], level: float | None) -> "_Frame":
        xs = [x for x, _ in points]
        ys = [y for _, y in points] + ([level] if level is not None else [])
        return cls(min(0.0, *xs), max(xs), min(0.0, *ys), max(ys) * 1.05 or 1.0)

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / ((self.x_high - self.x_low) or 1.0) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        bottom = HEIGHT - _BOTTOM
        return bottom - (value - self.y_low) / ((self.y_high - self.y_low) or 1.0) * (bottom - _TOP)

    def axes(self) -> list[str]:
        """Grid, ticks and axis; the words beside the axes are the caller's."""
        bottom = HEIGHT - _BOTTOM
        parts = []
        for value in _ticks(self.y_low, self.y_high, 4):
            at = self.y(value)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" {_at("y", at)}/>')
            parts.append(_text(_LEFT - 6, at + 4, digits(value), "end"))
        for value in _ticks(self.x_low, self.x_high, 5):
            parts.append(_text(self.x(value), bottom + 15, digits(value), "middle"))
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" {_at("y", bottom)}/>')
        return parts


def _series(frame: _Frame, name: str, drawn: Sequence[Point], number: int, *, joined: bool) -> str:
    places = [(frame.x(x), frame.y(y)) for x, y in drawn]
    dots = "".join(
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="currentColor"><title>{html.escape(name)}: '
        f"{digits(x)}, {digits(y)}</title></circle>"
        for (px, py), (x, y) in zip(places, drawn, strict=True)
    )
    path = "M" + " L".join(f"{px:.1f},{py:.1f}" for px, py in places)
    line = f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/>' if joined and places else ""
    return f'<g class="s{number % _COLOURS + 1}">{line}{dots}</g>'


def _table(axes: Axes, series: Mapping[str, Sequence[Point]]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{digits(x)}</td><td>{digits(y)}</td></tr>"
        for name, drawn in series.items()
        for x, y in drawn
    )
    head = "".join(f'<th scope="col">{html.escape(word)}</th>' for word in ("", axes.x, axes.y))
    return (
        '<details class="more"><summary>Show as table</summary>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>"
    )


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round values between the ends: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / wanted or 1.0
    power = 10 ** math.floor(math.log10(raw))
    step = next(times * power for times in (1, 2, 5, 10) if raw <= times * power * 1.0001)
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _at(axis: str, value: float) -> str:
    return f'{axis}1="{value:.1f}" {axis}2="{value:.1f}"'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
