"""The unit of evidence: a pair of runs, one of each arm in the same repeat, and what pairs say about a metric.

Requests inside a run queue behind each other and are no independent samples; pairs are. The change of a metric is
the log ratio candidate / baseline per pair; its interval is Student's t over pairs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduler_core.evidence.schema import NOISE, Absence, ClassSummary, Figure, RunSummary

Pair = tuple[RunSummary, RunSummary]

# Smallest difference that a unit can mean: below it, zeros would make any ratio infinite.
FLOORS = {"ms": 0.01, "requests/s": 1e-3, "tokens/s": 1e-2, "share": 1e-3, "blocks": 0.5, "MB": 0.01}


@dataclass(frozen=True, slots=True)
class Changes:
    """Log ratios of one metric over pairs.

    ``exact`` runs have no noise, so there is no interval. Infinite log ratios stand for pairs in which one side never
    finished enough requests. ``missing`` says why there is nothing to compare; the other fields are empty then.
    """

    logs: tuple[float, ...]
    baseline: float | None
    candidate: float | None
    exact: bool
    missing: str = ""

    @property
    def finite(self) -> bool:
        """Whether every pair has a finite change."""
        return all(math.isfinite(value) for value in self.logs)

    @property
    def mean(self) -> float:
        """Mean log ratio."""
        return sum(self.logs) / len(self.logs)

    @property
    def spread(self) -> float:
        """Sample standard deviation of the log ratios; 0 for one pair."""
        if len(self.logs) < 2:
            return 0.0
        mean = self.mean
        return math.sqrt(sum((value - mean) ** 2 for value in self.logs) / (len(self.logs) - 1))

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 for exact runs and for pairs that all agree."""
        return 0.0 if self.exact else self.spread / math.sqrt(len(self.logs))

    @property
    def change(self) -> float:
        """Relative change, candidate against baseline."""
        return relative(self.mean)

    def bounds(self, confidence: float) -> tuple[float, float]:
        """Two-sided interval of the mean log ratio; the whole line for a single noisy pair."""
        if self.exact:
            return self.mean, self.mean
        if len(self.logs) < 2:
            return -math.inf, math.inf
        half = t_quantile(0.5 + confidence / 2, len(self.logs) - 1) * self.error
        return self.mean - half, self.mean + half

    def p_value(self, border: float) -> float:
        """Two-sided p of the mean log ratio being ``border``; 0 or 1 where there is no noise."""
        distance = abs(self.mean - border)
        if self.exact:
            return 0.0 if distance > 0 else 1.0
        if len(self.logs) < 2:
            return 1.0
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return t_tail(distance / self.error, len(self.logs) - 1)


def changes(pairs: Sequence[Pair], metric: str, *, exact: bool) -> Changes:
    """Changes of ``metric`` over ``pairs``."""
    return changes_of(pairs, lambda run: run.metrics.get(metric), exact=exact)


def differences(pairs: Sequence[Pair], metric: str, *, exact: bool) -> Changes:
    """As `changes`, of a share that may be 0: such that `relative` of each is candidate - baseline, at least -0.999."""
    found = changes(pairs, metric, exact=exact)
    if found.missing:
        return found
    shares = [[run.metrics[metric].value or 0.0 for run in pair] for pair in pairs]
    logs = tuple(math.log1p(max(candidate - baseline, -0.999)) for baseline, candidate in shares)
    return replace(found, logs=logs)


def class_changes(pairs: Sequence[Pair], name: str, metric: str, *, exact: bool) -> Changes:
    """Changes of ``metric`` of one tenant's or tier's requests."""

    def figure(run: RunSummary) -> Figure | None:
        of_class: ClassSummary | None = run.classes.get(name)
        return of_class.metrics.get(metric) if of_class is not None else None

    return changes_of(pairs, figure, exact=exact)


def changes_of(pairs: Sequence[Pair], figure: Callable[[RunSummary], Figure | None], *, exact: bool) -> Changes:
    """Changes of whatever ``figure`` reads from a run."""
    logs: list[float] = []
    sides: tuple[list[float], list[float]] = ([], [])
    for pair in pairs:
        found = [figure(run) for run in pair]
        values = []
        for run, item, side in zip(pair, found, sides, strict=True):
            if item is None or (item.value is None and item.absence is not Absence.FAILED):
                reason = "not in the summary" if item is None else f"{item.absence}: {item.note or 'no reason'}"
                return Changes((), None, None, exact, f"{run.arm}, repeat {run.repeat}: {reason}")
            value = math.inf if item.value is None else item.value
            values.append(value)
            side.append(value)
        logs.append(log_ratio(values[0], values[1], found[0].unit if found[0] else ""))
    if not logs:
        return Changes((), None, None, exact, "there is no pair of runs")
    return Changes(tuple(logs), typical(sides[0]), typical(sides[1]), exact)


def noise_free(run: RunSummary) -> bool:
    """Whether a run came out of the model without noise, so that a repeat would be the same.

    It was not asked for, or the profile has none.
    """
    modelled = run.target.get("modelled")
    return isinstance(modelled, dict) and (modelled.get("noise") is False or run.fingerprint.get(NOISE) is False)


def typical(values: Sequence[float]) -> float | None:
    """Geometric mean, so that the ratio of two is the mean change shown; arithmetic where there is a zero.

    None when a value is infinite.
    """
    if not all(math.isfinite(value) for value in values):
        return None
    if min(values) <= 0:
        return sum(values) / len(values)
    return math.exp(sum(math.log(value) for value in values) / len(values))


def log_ratio(baseline: float, candidate: float, unit: str) -> float:
    """``log(candidate / baseline)``, values below what the unit can mean counting as that; 0 for two infinities."""
    if math.isinf(baseline) or math.isinf(candidate):
        if baseline == candidate:
            return 0.0
        return math.inf if math.isinf(candidate) else -math.inf
    floor = FLOORS.get(unit, 1e-9)
    return math.log(max(candidate, floor) / max(baseline, floor))


def relative(log: float) -> float:
    """Relative change of a log ratio; infinite where the log is."""
    return math.inf if log > 700 else math.expm1(log)


def bounded(change: float) -> float:
    """A relative change that JSON can hold."""
    return min(change, 1e6)


def t_quantile(share: float, freedom: int) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit  # here, so that reading a stored verdict never loads SciPy

    return float(stdtrit(freedom, share))


def t_tail(value: float, freedom: int) -> float:
    """Two-sided tail probability of Student's t."""
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(value)))


def pairs_needed(spread: float, distance: float, confidence: float, most: int = 100) -> int | None:
    """Fewest pairs whose interval would clear a border at ``distance``; None when that takes more than ``most``."""
    for count in range(2, most + 1):
        if t_quantile(0.5 + confidence / 2, count - 1) * spread / math.sqrt(count) < distance:
            return count
    return None
