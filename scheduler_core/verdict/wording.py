"""Numbers with units, the same on the page, in the terminal and in reports."""

import math

from scheduler_core.spec.goal import OF_OFFERED
from scheduler_core.verdict.schema import Interval

# Rank in "runnability > latency > throughput": a broken guard of equal or higher rank than the primary rejects.
RUNNABILITY, LATENCY, THROUGHPUT = 0, 1, 2


def rank(metric: str) -> int:
    """Priority of a metric; resources such as memory rank with throughput."""
    if metric in ("completion_share", "failure_share", *OF_OFFERED):
        return RUNNABILITY
    return LATENCY if metric.endswith("_ms") or metric == "stall_share" else THROUGHPUT


def amount(value: float | None, unit: str) -> str:
    """A value with its unit: three significant digits, no exponent."""
    if value is None:
        return "infinite"
    if unit == "share":
        return share(value)
    return digits(value) if unit == "count" else f"{digits(value)} {unit}".rstrip()


def digits(value: float, significant: int = 3) -> str:
    """A number with ``significant`` digits, thousands apart, no exponent and no zeros that say nothing.

    12,345 / 123 / 12.3 / 2 / 0.00123. Whole numbers from 100 on are written whole.
    """
    if not math.isfinite(value):
        return "infinite" if value > 0 else "not defined"
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    places = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(places, 9)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(value: float) -> str:
    """A fraction as a percentage: 0.8421 reads "84.2 %"."""
    return f"{digits(value * 100)} %"


def percent(change: float | None) -> str:
    """A signed relative change with at most one decimal: ``+4.2 %``; infinite changes in words."""
    if change is None or math.isnan(change):
        return "not defined"
    if math.isinf(change) or change > 100:
        return "over +10,000 %"
    rounded = round(change * 100, 1 if abs(change) < 1 else 0) or 0.0  # never a minus zero
    return f"{rounded:+,.1f}".removesuffix(".0").replace("+0", "0", 1 if rounded == 0 else 0) + " %"


def within(interval: Interval | None) -> str:
    """The interval in brackets, with its confidence."""
    if interval is None:
        return "exact, no interval"
    return f"[{percent(interval.low)}, {percent(interval.high)}] at {interval.confidence * 100:.3g} %"


_CAUSES = {
    "decode": "ordinary decode steps",
    "instance_died": "the death of its instance",
    "prefill_ahead": "prefill of other requests in the same step",
    "preempted: no_blocks": "preemption for want of free blocks (retraction)",
    "preempted: priority": "preemption for requests of higher priority",
    "preempted: cache_reset": "preemption for a reset of the cache",
    "preempted: tenant_quota": "preemption at the tenant's quota",
    "paused": "pauses, with blocks kept or in host memory",
    "host": "the host's work between steps",
}


def cause_words(cause: str) -> str:
    """What made a gap long, in words; other causes say so themselves."""
    return _CAUSES.get(cause, cause.replace("_", " "))


def join(parts: list[str]) -> str:
    """``a, b and c``."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""
