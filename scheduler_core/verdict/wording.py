"""Numbers with units, the same on the page, in the terminal and in reports."""

import math

from scheduler_core.verdict.schema import Interval

# Rank in "runnability > latency > throughput": a broken guard of equal or higher rank than the primary rejects.
RUNNABILITY, LATENCY, THROUGHPUT = 0, 1, 2


def rank(metric: str) -> int:
    """Priority of a metric; resources such as memory rank with throughput."""
    if metric in ("completion_share", "failure_share", "timeout_share"):
        return RUNNABILITY
    return LATENCY if metric.endswith("_ms") or metric == "stall_share" else THROUGHPUT


def amount(value: float | None, unit: str) -> str:
    """A value with its unit: three significant digits, no exponent."""
    if value is None:
        return "infinite"
    if unit == "share":
        return f"{value * 100:.1f} %"
    return digits(value) if unit == "count" else f"{digits(value)} {unit}".rstrip()


def digits(value: float) -> str:
    """Three significant digits for small numbers, whole ones from 100 on."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}"


def percent(change: float | None) -> str:
    """A signed relative change: ``+4.2 %``; infinite changes in words."""
    if change is None or math.isnan(change):
        return "not defined"
    if math.isinf(change) or change > 100:
        return "over +10,000 %"
    rounded = round(change * 100, 1 if abs(change) < 1 else 0) or 0.0  # never a minus zero
    return f"{rounded:+,.{1 if abs(change) < 1 else 0}f} %"


def within(interval: Interval | None) -> str:
    """The interval in brackets, with its confidence."""
    if interval is None:
        return "exact, no interval"
    return f"[{percent(interval.low)}, {percent(interval.high)}] at {interval.confidence * 100:.3g} %"


_CAUSES = {
    "decode": "ordinary decode steps",
    "prefill_ahead": "prefill of other requests in the same step",
    "preempted": "preemption",
    "paused": "pauses, with blocks kept or in host memory",
    "host": "the host's work between steps",
}


def cause_words(cause: str) -> str:
    """What made a gap long, in words; causes of stalls say so themselves."""
    return _CAUSES.get(cause, cause.replace("_", " "))


def join(parts: list[str]) -> str:
    """``a, b and c``."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""
