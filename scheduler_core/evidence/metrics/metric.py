"""What a metric is, and how a quantile obeys its sample rule."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables
from scheduler_core.types.quantile import Ascending, quantile

Better = Literal["lower", "higher", "none"]
Scope = Literal["request", "run", "pool", "step"]
SampleRule = Literal["p99: withheld below 100, marked below 300", "p95: withheld below 20", "any", "one per run"]
Compute = Callable[[RunTables], Figure]


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry: ``formula`` is text for people, ``compute`` is the same formula over a run's tables."""

    name: str
    unit: str
    formula: str
    better: Better
    scope: Scope
    sample_rule: SampleRule
    compute: Compute


def present(value: float, unit: str, n: int | None = None, note: str = "") -> Figure:
    """A figure with a value."""
    return Figure(value=value, unit=unit, n=n, note=note)


def absent(unit: str, absence: Absence, note: str = "", n: int | None = None) -> Figure:
    """A typed absence."""
    return Figure(value=None, unit=unit, n=n, absence=absence, note=note)


def defined(found: float | None, unit: str, why: str, note: str = "") -> Figure:
    """A figure of what was ``found``; where that is nothing, it does not apply, and ``why``."""
    return absent(unit, Absence.NOT_APPLICABLE, why) if found is None else present(float(found), unit, note=note)


def tail(values: Ascending, share: float, unit: str = "ms") -> Figure:
    """A quantile of ascending values under the sample rule."""
    count = len(values)
    if count == 0:
        return absent(unit, Absence.NOT_APPLICABLE, "not defined (0 samples)", 0)
    if count < shortest_for(share):
        need = f"{count} samples, p{share * 100:.0f} needs {shortest_for(share)}"
        return absent(unit, Absence.INSUFFICIENT_SAMPLES, need, count)
    value = quantile(values, share)
    if math.isinf(value):
        return absent(unit, Absence.FAILED, "infinite: too many offered requests did not finish", count)
    few = count < marked_below(share)
    return present(value, unit, count, f"few samples: {count}, trust from {marked_below(share)}" if few else "")


def shortest_for(share: float) -> int:
    """Samples below which a tail quantile is withheld: 100 for p99, 20 for p95, else 1."""
    if share >= 0.99:
        return 100
    return 20 if share >= 0.95 else 1


def marked_below(share: float) -> int:
    """Samples below which a quantile is shown but marked.

    300 for p99: with 299 samples the largest bounds the true p99 at 95 % confidence.
    """
    return 300 if share >= 0.99 else 0


def quantile_rule(share: float) -> SampleRule:
    """Sample rule of a quantile."""
    if share >= 0.99:
        return "p99: withheld below 100, marked below 300"
    return "p95: withheld below 20" if share >= 0.95 else "any"
