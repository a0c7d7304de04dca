"""How figures read to people: numbers with their units, durations, sizes, and typed absences as words."""

import math
from collections.abc import Mapping

from scheduler_core.verdict import wording
from scheduler_core.verdict.titles import metric_unit

ABSENCE_WORDS = {
    "not_measured": "not measured",
    "not_applicable": "does not apply",
    "unsupported": "not supported here",
    "failed": "failed",
    "insufficient_samples": "too few samples",
}

MINUTE, HOUR, DAY = 60, 3600, 86_400


def number(value: float | None, digits: int = 3) -> str:
    """A number in the words of `scheduler_core.verdict.wording`; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else wording.digits(value, digits)


def duration(seconds: float | None) -> str:
    """A length of time: 0.42 s, 12 s, 3 min 05 s, 2 h 10 min, 3 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{number(max(0.0, seconds), 2)} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02d} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def about(seconds: float) -> str:
    """A length of time in its largest unit, as one says it: 42 s, 27 min, 2 h, 3 d."""
    for length, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(count: int | None) -> str:
    """Bytes in binary multiples: 512 B, 3.4 KiB, 12 MiB."""
    if count is None:
        return "–"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{number(amount) if unit != 'B' else count} {unit}"
        amount /= 1024
    raise AssertionError("unreachable: GiB takes every amount")


def tenths(value: float | None) -> str:
    """A number to a tenth, for columns that add up: 39,670.5; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.1f}"


def share(value: float | None) -> str:
    """A fraction as a percentage: 0.8421 reads "84.2 %"."""
    return "–" if value is None else wording.share(value)


def change(value: float | None) -> str:
    """A relative change with its sign: 0.1 reads "+10 %"; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else wording.percent(value)


def figure(data: Mapping[str, object] | None, name: str = "") -> tuple[str, str, bool]:
    """(text, unit, present) of a summary's figure; an absence reads as its reason, never as zero."""
    if data is None:
        return ABSENCE_WORDS["not_measured"], "", False
    value = data.get("value")
    if not isinstance(value, int | float) or isinstance(value, bool):
        absence = str(data.get("absence") or "not_measured")
        return ABSENCE_WORDS.get(absence, absence.replace("_", " ")), "", False
    if name.endswith("_share"):
        return number(value * 100), "%", True
    return number(value), metric_unit(name) or str(data.get("unit") or ""), True


def count(amount: int, singular: str, plural: str = "") -> str:
    """``1 run`` or ``3 runs``."""
    return f"{amount:,} {singular if amount == 1 else plural or singular + 's'}"
