"""Which experts the tokens of a step choose: seeded by step, so the same whoever asks and in any order."""

import hashlib
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

from scheduler_core.spec.parallel import ExpertTime
from scheduler_core.types.noise import uniform

_LEVELS = 4096


class ExpertLoads(NamedTuple):
    """Choices of a step by expert, after those over its capacity were dropped; all layers alike.

    ``places`` are the loads of the experts that lie together. ``chosen`` = kept + ``dropped``.
    """

    places: tuple[tuple[int, ...], ...]
    chosen: int
    dropped: int

    @property
    def most(self) -> int:
        """Choices that the busiest expert kept."""
        return max(map(max, self.places))


class ExpertRouter:
    """Draws who chooses which expert.

    Popularity falls with rank to the power of minus the skew; ranks are dealt to experts by the seed, once: hot experts
    stay hot. A token chooses ``used`` different ones, so no expert is chosen by more than all tokens, nor is any more
    popular than that allows. The choices of a step scatter about their mean as independent ones do (normal
    approximation of the binomial), and add up exactly.
    """

    def __init__(self, time: ExpertTime) -> None:
        self._time = time
        self._popular = _popularity(time)
        self._width = time.count // time.groups

    def loads(self, tokens: int, step: int) -> ExpertLoads:
        """The choices of ``tokens`` tokens in step number ``step``. O(experts log experts)."""
        time = self._time
        chosen = tokens * time.used
        kept = _apportion(self._weights(chosen, step), chosen, tokens)
        dropped = 0
        if time.capacity_factor is not None:
            most = max(1, -int(-time.capacity_factor * chosen // time.count))
            dropped = sum(load - most for load in kept if load > most)
            kept = [min(load, most) for load in kept]
        width = self._width
        places = tuple(tuple(kept[start : start + width]) for start in range(0, time.count, width))
        return ExpertLoads(places, chosen, dropped)

    def _weights(self, chosen: int, step: int) -> list[float]:
        key = f"{self._time.seed}/experts/{step}".encode()
        draws = memoryview(hashlib.shake_128(key).digest(2 * self._time.count)).cast("H")
        normal = _normal()
        found = []
        for share, draw in zip(self._popular, draws, strict=True):
            mean = chosen * share
            found.append(max(0.0, mean + (mean * (1 - share)) ** 0.5 * normal[draw % _LEVELS]))
        return found


@cache
def _normal() -> tuple[float, ...]:
    """Standard normal numbers at evenly spaced probabilities."""
    unit = NormalDist()
    return tuple(unit.inv_cdf((level + 0.5) / _LEVELS) for level in range(_LEVELS))


def _popularity(time: ExpertTime) -> list[float]:
    """Share of all choices by expert; at most 1 / used, since a token chooses an expert once."""
    dealt = sorted(range(time.count), key=lambda expert: (uniform(time.seed, "expert rank", expert), expert))
    raw = [float((rank + 1) ** -time.skew) for rank in range(time.count)]
    most, left, total = 1 / time.used, 1.0, sum(raw)
    shares = [0.0] * time.count
    for rank, weight in enumerate(raw):  # the popular first: what they may not take goes to the others
        share = min(most, left * weight / total) if total > 0 else 0.0
        shares[dealt[rank]] = share
        left, total = left - share, total - weight
    return shares


def _apportion(weights: list[float], chosen: int, tokens: int) -> list[int]:
    """``chosen`` whole choices in proportion to ``weights``, at most ``tokens`` each, by largest remainders."""
    total = sum(weights) or 1.0
    exact = [weight * chosen / total for weight in weights]
    found = [min(tokens, int(share)) for share in exact]
    short = chosen - sum(found)
    order = sorted(range(len(exact)), key=lambda expert: (found[expert] - exact[expert], expert))
    while short > 0:
        for expert in order:
            if short and found[expert] < tokens:
                found[expert] += 1
                short -= 1
    return found
