"""Which configurations no other beats in every respect."""

from collections.abc import Mapping, Sequence
from typing import Literal

Way = Literal["lower", "higher"]


def pareto(points: Mapping[str, Mapping[str, float]], better: Mapping[str, Way]) -> list[str]:
    """Names of the points that no other point equals in every figure of ``better`` and beats in one."""
    return [name for name in points if not any(_beats(points[other], points[name], better) for other in points)]


def _beats(one: Mapping[str, float], other: Mapping[str, float], better: Mapping[str, Way]) -> bool:
    signs: Sequence[float] = [(other[name] - one[name]) * (1 if way == "lower" else -1) for name, way in better.items()]
    return min(signs) >= 0 and max(signs) > 0
