"""From lines to records: CSV rows by column name, JSON lines by key."""

import csv
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.traces.layouts import Container
from scheduler_core.workload.traces.lines import Lines, refusal
from scheduler_core.workload.traces.values import RowError, show

Record = tuple[int, Mapping[str, Any] | RowError]
"""Line number, and the row's values by name or the reason why it has none."""

HEAD_ROWS = 50
"""Rows looked at to find out what a file is."""


class Records:
    """The rows of a file, with its container and the column names of its first rows.

    CSV values are text and JSON values have types; `container` says which.
    """

    def __init__(self, lines: Lines) -> None:
        numbered = ((number, text) for number, text in lines if text.strip())
        first = next(numbered, None)
        if first is None:
            raise refusal("has no rows, only empty lines")
        start = first[1].lstrip()[0]
        if start == "[":
            raise refusal("is a JSON array; write one JSON object a line (JSON lines)", first[0])
        self.container: Container = "jsonl" if start == "{" else "csv"
        if self.container == "csv":
            self._rows = _csv_rows(chain([first], numbered))
            self.columns = self._header()
        else:
            self._rows = _json_rows(chain([first], numbered))
            self.columns = ()
        self._head = list(islice(self._rows, HEAD_ROWS))
        if not self._head:
            raise refusal("has a header but no rows")
        if self.container == "jsonl":
            readable = [values for _, values in self._head if not isinstance(values, RowError)]
            if not readable:
                raise InputError([Problem(f"line {number}", str(error)) for number, error in self._head[:3]])
            self.columns = tuple(dict.fromkeys(name for values in readable for name in values))

    def sample(self, name: str) -> Any:
        """The first value of a column that is not missing; None when there is none in the first rows."""
        values = (row.get(name) for _, row in self._head if not isinstance(row, RowError))
        return next((value for value in values if value not in (None, "")), None)

    def __iter__(self) -> Iterator[Record]:
        return chain(self._head, self._rows)

    def _header(self) -> tuple[str, ...]:
        number, header = next(self._rows)
        if isinstance(header, RowError):
            raise refusal(str(header), number)
        return tuple(header)


def _csv_rows(numbered: Iterator[tuple[int, str]]) -> Iterator[Record]:
    """The header first (as a mapping of names to themselves), then each row."""
    last = 0

    def texts() -> Iterator[str]:
        nonlocal last
        for number, text in numbered:
            last = number
            yield text + "\n"

    reader = csv.reader(texts(), strict=True)
    header: list[str] | None = None
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise refusal(f"is not readable as CSV: {error}", last) from None
        if header is None:
            header = [name.strip() for name in row]
            _check_header(header, last)
            yield last, dict(zip(header, header, strict=True))
        elif len(row) != len(header):
            yield last, RowError(f"has {len(row)} values where the header has {len(header)} columns")
        else:
            yield last, dict(zip(header, row, strict=True))


def _check_header(header: list[str], line: int) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise refusal(f"names a column twice: {', '.join(map(show, twice))}", line)


def _json_rows(numbered: Iterator[tuple[int, str]]) -> Iterator[Record]:
    for number, text in numbered:
        try:
            values = json.loads(text, parse_float=Decimal, parse_constant=Decimal, object_pairs_hook=_object)
        except RowError as error:
            yield number, error
        except (ValueError, ArithmeticError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long or it is too deep"
            yield number, RowError(f"is not readable as JSON ({reason}); each line must be one object")
        else:
            if isinstance(values, dict):
                yield number, values
            else:
                yield number, RowError(f"is {show(values)}, not an object; write one JSON object a line")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise RowError(f"names a field twice: {', '.join(map(show, twice))}")
    return values
