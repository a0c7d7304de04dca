"""Quantiles: linear interpolation between order statistics, the same everywhere in the product."""

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Protocol


class Ascending(Protocol):
    """Sorted numbers: a list or an array."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, place: int, /) -> Any:
        """The number at ``place``."""


def quantile(values: Ascending, share: float) -> float:
    """The ``share`` quantile of ``values``, sorted ascending and not empty.

    Linear interpolation at position ``(n - 1) * share`` (NumPy's default). Infinity stands for a request that never
    got there: as soon as the position touches one, the quantile is infinite, never NaN.
    """
    place = (len(values) - 1) * share
    low = math.floor(place)
    below = float(values[low])
    part = place - low
    if part == 0 or math.isinf(below):
        return below
    return below + (float(values[low + 1]) - below) * part


class Weighted:
    """Numbers that occur several times each, as the ascending sequence of all of them."""

    def __init__(self, counted: Iterable[tuple[Any, int]]) -> None:
        """``counted`` are (number, times) in any order."""
        ordered = sorted(counted)
        self._numbers = [number for number, _ in ordered]
        self._ends = list(accumulate(times for _, times in ordered))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, place: int, /) -> Any:
        return self._numbers[bisect_right(self._ends, place)]
