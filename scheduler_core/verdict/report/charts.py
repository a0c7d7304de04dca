"""Small charts as inline SVG: no script, no network, readable in light and dark."""

import html
from collections.abc import Mapping, Sequence

from scheduler_core.verdict.schema import Gate
from scheduler_core.verdict.wording import digits, percent

WIDTH, ROW = 640, 34
_LEFT, _RIGHT = 210, 20


def interval_chart(gates: Sequence[Gate]) -> str:
    """Each gate's change with its interval, on one axis of relative change; the margin is a tick."""
    shown = [gate for gate in gates if gate.change is not None]
    if not shown:
        return ""
    reach = max(0.05, *(abs(value) for gate in shown for value in _extent(gate)))
    reach = min(reach, 2.0)
    height = ROW * len(shown) + 30
    parts = [_line(_x(0, reach), 0, _x(0, reach), height - 24, "axis")]
    for place, gate in enumerate(shown):
        parts.append(_gate(gate, ROW * place + ROW / 2, reach))
    for value, anchor in ((-reach, "start"), (0.0, "middle"), (reach, "end")):
        parts.append(_text(_x(value, reach), height - 6, percent(value), anchor))
    return _svg(height, parts, "change of each gate with its interval")


def bar_chart(title: str, values: Mapping[str, float], unit: str) -> str:
    """Horizontal bars, one per name; without values a sentence that says so."""
    if not values:
        return f'<p class="note">{html.escape(title)}: no figure.</p>'
    most = max(values.values()) or 1.0
    parts = []
    for place, (name, value) in enumerate(values.items()):
        y = ROW * place + 6
        width = max(1.0, (WIDTH - _LEFT - 120) * value / most)
        parts.append(f'<rect class="bar" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{ROW - 12}" rx="3"/>')
        parts.append(_text(_LEFT - 8, y + 15, name, "end"))
        parts.append(_text(_LEFT + width + 6, y + 15, f"{digits(value)} {unit}", "start"))
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{_svg(ROW * len(values), parts, title)}</figure>"


def _extent(gate: Gate) -> tuple[float, ...]:
    change = gate.change or 0.0
    return (change, gate.interval.low, gate.interval.high) if gate.interval else (change,)


def _gate(gate: Gate, y: float, reach: float) -> str:
    allowed = gate.margin if gate.role == "guard" else (-gate.margin if gate.better == "lower" else gate.margin)
    parts = [
        _text(_LEFT - 8, y + 4, gate.metric, "end"),
        _line(_x(allowed, reach), y - 9, _x(allowed, reach), y + 9, "margin"),
    ]
    if gate.interval is not None:
        parts.append(_line(_x(gate.interval.low, reach), y, _x(gate.interval.high, reach), y, gate.state))
    parts.append(f'<circle class="{gate.state}" cx="{_x(gate.change or 0.0, reach):.1f}" cy="{y}" r="5"/>')
    return "".join(parts)


def _x(change: float, reach: float) -> float:
    share = (max(-reach, min(reach, change)) + reach) / (2 * reach)
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )
