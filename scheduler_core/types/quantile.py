"""Quantiles: linear interpolation between order statistics, the same everywhere in the product."""

import math
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
