"""The declared group-sequential rule: look at the pairs more than once without losing the error rate.

A goal may declare looks, such as 5, 10 and 20 pairs. Each look may spend only part of alpha: the amounts follow Lan and
DeMets' spending function of O'Brien-Fleming type, so that early looks need strong evidence, and the amounts of all
looks add up to alpha at most. Each look is tested at its own increment (Bonferroni over looks: a little strict, and
valid whatever the correlation of the looks).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from scheduler_core.verdict.schema import Verdict

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Look:
    """One planned look: its number from 1, the pairs it needs, and the level it may use."""

    number: int
    pairs: int
    alpha: float


def spent(fraction: float, alpha: float) -> float:
    """Alpha spent once ``fraction`` of the pairs are in: ``2 (1 - Phi(z / sqrt(fraction)))``, z for ``alpha / 2``."""
    if fraction <= 0:
        return 0.0
    z = _NORMAL.inv_cdf(1 - alpha / 2)
    return 2 * (1 - _NORMAL.cdf(z / math.sqrt(min(fraction, 1.0))))


def plan(looks: Sequence[int], alpha: float) -> list[Look]:
    """The looks with their levels; the levels add up to ``alpha``."""
    most = looks[-1]
    found: list[Look] = []
    before = 0.0
    for number, pairs in enumerate(looks, start=1):
        upto = spent(pairs / most, alpha)
        found.append(Look(number, pairs, upto - before))
        before = upto
    return found


def look_at(looks: Sequence[int], pairs: int, alpha: float) -> Look | None:
    """The newest look that ``pairs`` have reached; None before the first. Pairs beyond it wait for the next look."""
    reached = [look for look in plan(looks, alpha) if look.pairs <= pairs]
    return reached[-1] if reached else None


def next_look(looks: Sequence[int], pairs: int) -> int | None:
    """Pairs of the next look, None after the last."""
    return next((look for look in looks if look > pairs), None)


@dataclass(frozen=True, slots=True)
class Further:
    """What the next look needs: this many pairs in all, of the baseline and the candidates still undecided."""

    pairs: int
    arms: frozenset[str]


def further(looks: Sequence[int], made: int, verdict: Verdict) -> Further | None:
    """What to run beyond the ``made`` pairs; None when no answer can change any more.

    A candidate that was decided at an earlier look stays decided: it gets no further runs.
    """
    pairs = next_look(looks, made)
    undecided = [comparison for comparison in verdict.comparisons if comparison.next_look is not None]
    if pairs is None or not undecided:
        return None
    return Further(pairs, frozenset(name for item in undecided for name in (item.baseline, item.candidate)))
