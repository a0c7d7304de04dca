"""Growable typed columns: a run of a million requests lies in arrays and files, not in objects."""

import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

MISSING = -1
HELD_ROWS = 16_384  # rows that are held before they go to a file
_WIDTH = 8  # bytes of an integer


class IntRows:
    """Rows of named integers in one array: the quickest way to take rows that are soon turned into columns."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._flat = array("q")

    def append(self, *values: int) -> None:
        """Add a row, one value per name in their order."""
        self._flat.extend(values)

    def extend(self, rows: Ints) -> None:
        """Add rows given as an array of (row, name)."""
        self._flat.frombytes(rows.tobytes())

    def take(self) -> dict[str, Ints]:
        """The rows so far as columns; there are none afterwards."""
        rows = np.frombuffer(self._flat, dtype=np.int64).reshape(-1, len(self.names))
        self._flat = array("q")
        return {name: np.ascontiguousarray(rows[:, place]) for place, name in enumerate(self.names)}

    def write(self, file: IO[bytes]) -> None:
        """Append the rows so far to ``file``, one after the other; there are none afterwards."""
        file.write(memoryview(self._flat).cast("B"))
        self._flat = array("q")


class GrowingColumns:
    """Rows of named integers, held up to `HELD_ROWS` and beyond that in a scratch file in ``folder``.

    Without a folder everything is held. `MISSING` marks a value that is not there.
    """

    def __init__(self, names: Iterable[str], folder: Path | None = None) -> None:
        self.names = tuple(names)
        self._rows = IntRows(self.names)
        self._folder = folder
        self._scratch: IO[bytes] | None = None
        self._held = self._written = 0

    def append(self, *values: int) -> None:
        """Add a row, one value per name in their order."""
        self._rows.append(*values)
        self._held += 1
        if self._held >= HELD_ROWS and self._folder is not None:
            self._spill()

    def sorted_by(self, name: str) -> Mapping[str, Ints]:
        """The rows so far as columns, in rising order of ``name``; there are none afterwards."""
        if self._scratch is None:
            columns = self._rows.take()
            order = columns[name].argsort(kind="stable")
            return {key: column[order] for key, column in columns.items()}
        self._spill()
        scratch, rows = self._scratch, self._written
        self._scratch, self._written = None, 0
        return FiledColumns.of_rows(scratch, self.names, (rows, name), self._folder)

    def _spill(self) -> None:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed when its columns are made
        self._rows.write(self._scratch)
        self._written += self._held
        self._held = 0


class FiledColumns(Mapping[str, Ints]):
    """Columns in an unnamed file, which goes with the last reference to them; a column is mapped when asked for."""

    def __init__(self, file: IO[bytes], names: tuple[str, ...], rows: int) -> None:
        self._file = file
        self._places = {name: place for place, name in enumerate(names)}
        self._rows = rows

    @classmethod
    def of_rows(
        cls, scratch: IO[bytes], names: tuple[str, ...], order: tuple[int, str], folder: Path | None
    ) -> "FiledColumns":
        """From a scratch file of rows one after the other; closes it. ``order`` is (rows, column they rise in)."""
        rows, by = order
        with scratch:
            found = cls(tempfile.TemporaryFile(dir=folder), names, rows)  # noqa: SIM115 - goes with its last reference
            found._transpose(scratch)
        places = found[by].argsort(kind="stable")
        for name in names:
            found._write(name, 0, found[name][places])
        return found

    def __getitem__(self, name: str) -> Ints:
        offset = self._places[name] * self._rows * _WIDTH
        return np.memmap(self._file, np.int64, "r", offset, (self._rows,)).view(np.ndarray)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _transpose(self, scratch: IO[bytes]) -> None:
        """Take rows block by block, so that never more than a block of them is held."""
        width = len(self._places)
        scratch.seek(0)
        for start in range(0, self._rows, HELD_ROWS):
            count = min(HELD_ROWS, self._rows - start)
            block = np.frombuffer(scratch.read(count * width * _WIDTH), dtype=np.int64).reshape(count, width)
            for name, place in self._places.items():
                self._write(name, start, np.ascontiguousarray(block[:, place]))

    def _write(self, name: str, start: int, values: Ints) -> None:
        self._file.seek((self._places[name] * self._rows + start) * _WIDTH)
        self._file.write(values.data)
        self._file.flush()


class ColumnsPart(Mapping[str, Ints]):
    """Rows ``[start, stop)`` of other columns."""

    def __init__(self, whole: Mapping[str, Ints], start: int, stop: int) -> None:
        self._whole = whole
        self._rows = slice(start, stop)

    def __getitem__(self, name: str) -> Ints:
        return self._whole[name][self._rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)


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


class Marks:
    """Which small whole numbers were seen: a bit for each up to the largest."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, number: int) -> None:
        """Mark ``number``."""
        place = number >> 3
        if place >= len(self._bits):
            self._bits.extend(bytes(max(64, place + 1 - len(self._bits))))
        self._bits[place] |= 1 << (number & 7)

    def __contains__(self, number: int) -> bool:
        place = number >> 3
        return place < len(self._bits) and bool(self._bits[place] >> (number & 7) & 1)
