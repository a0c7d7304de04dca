"""Order statistics of more values than are held at once: exact, by radix selection over the batches they come in."""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]

HELD = 1 << 18  # values that are held and sorted at a time
_DIGIT = 16  # bits that a pass over the values settles
_SIGN = np.uint64(1 << 63)


class OrderStatistics:
    """All values of ``batches`` as if they were sorted: a length, and the value at each place.

    Up to `HELD` values are held and sorted. Of more, each pass counts the values by the next 16 bits of a key that
    rises with the value, and goes on within the one count that holds the place, until what is left there can be held
    or has no bits left. ``batches`` is called once for each pass and must give the same values; NaN is not one.
    """

    def __init__(self, batches: Callable[[], Iterable[Floats]]) -> None:
        self._batches = batches
        self._counts: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        self._sorted: dict[tuple[int, int], Floats] = {}
        self._length = sum(len(batch) for batch in batches())

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> float:
        """The value at ``place``, from 0 for the least; a negative one counts from the end."""
        rank = place + self._length if place < 0 else place
        if not 0 <= rank < self._length:
            raise IndexError(f"there are {self._length} values, none at {place}")
        prefix, settled, count = 0, 0, self._length
        while count > HELD and settled < 64:
            ends = self._ends(prefix, settled)
            digit = int(ends.searchsorted(rank, side="right"))
            before = int(ends[digit - 1]) if digit else 0
            rank, count = rank - before, int(ends[digit]) - before
            prefix, settled = prefix << _DIGIT | digit, settled + _DIGIT
        if settled == 64:
            return float(_values(np.array([prefix], dtype=np.uint64))[0])
        return float(self._held(prefix, settled)[rank])

    def _ends(self, prefix: int, settled: int) -> npt.NDArray[np.int64]:
        """Running counts, by their next digit, of the values whose first ``settled`` bits are ``prefix``."""
        found = self._counts.get((prefix, settled))
        if found is None:
            counts = np.zeros(1 << _DIGIT, dtype=np.int64)
            for keys in self._with(prefix, settled):
                digits = keys >> np.uint64(64 - settled - _DIGIT) & np.uint64((1 << _DIGIT) - 1)
                counts += np.bincount(digits.astype(np.int64), minlength=len(counts))
            found = self._counts[prefix, settled] = counts.cumsum()
        return found

    def _held(self, prefix: int, settled: int) -> Floats:
        """The values whose first ``settled`` bits are ``prefix``, sorted."""
        found = self._sorted.get((prefix, settled))
        if found is None:
            keys = np.concatenate([np.empty(0, np.uint64), *self._with(prefix, settled)])
            keys.sort()
            self._sorted.clear()  # one at a time
            found = self._sorted[prefix, settled] = _values(keys)
        return found

    def _with(self, prefix: int, settled: int) -> Iterable[Keys]:
        for batch in self._batches():
            keys = _keys(batch)
            yield keys[keys >> np.uint64(64 - settled) == prefix] if settled else keys


def _keys(values: Floats) -> Keys:
    """Whole numbers that rise with the values: the bits of an IEEE 754 double, all turned where it is negative."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _values(keys: Keys) -> Floats:
    return np.where(keys & _SIGN, keys & ~_SIGN, ~keys).view(np.float64)
