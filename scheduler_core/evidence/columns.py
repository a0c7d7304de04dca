"""Growable typed columns: a run of a million requests is held as arrays, not as objects."""

from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

MISSING = -1


class IntColumns:
    """Named columns of signed 64-bit integers that grow together; `MISSING` marks a value that is not there."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._data = {name: array("q") for name in self.names}
        self._appends = [self._data[name].append for name in self.names]

    def __len__(self) -> int:
        return len(self._data[self.names[0]])

    def append(self, *values: int) -> None:
        """Add a row, one value per name in their order."""
        for put, value in zip(self._appends, values, strict=True):
            put(value)

    def take(self) -> dict[str, Ints]:
        """The rows so far as arrays; the columns are empty afterwards."""
        taken = {
            name: np.frombuffer(data, dtype=np.int64) for name, data in self._data.items()
        }  # they own the data now
        self._data = {name: array("q") for name in self.names}
        self._appends = [self._data[name].append for name in self.names]
        return taken


class IntRows:
    """Rows of named integers in one array: the quickest way to take rows that are soon turned into columns."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._flat = array("q")

    def append(self, *values: int) -> None:
        """Add a row, one value per name in their order."""
        self._flat.extend(values)

    def extend(self, *columns: Ints) -> None:
        """Add rows given as columns of equal length, in the order of the names."""
        self._flat.frombytes(np.column_stack(columns).astype(np.int64, copy=False).tobytes())

    def take(self) -> dict[str, Ints]:
        """The rows so far as columns; there are none afterwards."""
        rows = np.frombuffer(self._flat, dtype=np.int64).reshape(-1, len(self.names))
        self._flat = array("q")
        return {name: np.ascontiguousarray(rows[:, place]) for place, name in enumerate(self.names)}


class Codes:
    """Small integers for repeated strings, in order of first use; `MISSING` stands for no string."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._of: dict[str, int] = {}

    def code(self, value: str) -> int:
        """The code of ``value``."""
        found = self._of.get(value)
        if found is None:
            found = self._of[value] = len(self.values)
            self.values.append(value)
        return found

    def get(self, value: str) -> int:
        """The code of ``value`` if it was ever used, else a code that no row has."""
        return self._of.get(value, len(self.values))
