"""Rows of a trace that wait for other rows, from names in the file to places in time order."""

from array import array
from collections.abc import Mapping
from typing import Any

from scheduler_core.types.dependencies import circle_in
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.traces.data import Parents
from scheduler_core.workload.traces.layouts import Layout
from scheduler_core.workload.traces.values import RowError, instant, label, row_ids, show

LEFT_OUT = -1


class ParentColumn:
    """Ids, parents and think times of the rows read so far."""

    def __init__(self, layout: Layout) -> None:
        self._columns, self._unit_ns = layout.columns, layout.unit_ns if layout.timed else 1
        self._text = layout.container == "csv"
        self._row_of: dict[str, int] = {}
        self._names: list[str] = []
        self._parents: list[tuple[int, tuple[str, ...]]] = []
        self._thinks = array("q")

    def skip(self, values: Mapping[str, Any]) -> None:
        """A row that is left out: nobody waits for it."""
        self._row_of[self._name(values)] = LEFT_OUT

    def add(self, line: int, values: Mapping[str, Any]) -> None:
        """The next usable row."""
        columns = self._columns
        assert columns.id is not None and columns.parents is not None  # asked for only then
        name = self._name(values)
        parents = row_ids(columns.parents, values.get(columns.parents), text=self._text)
        think = values.get(columns.think) if columns.think else None
        blank = think is None or (self._text and not str(think).strip())
        think_ns = 0 if blank else instant(columns.think or "", think, self._unit_ns, text=self._text)
        self._row_of[name] = len(self._names)
        self._names.append(name)
        self._parents.append((line, parents))
        self._thinks.append(think_ns)

    def resolved(self, order: list[int] | None) -> Parents:
        """Parents as places in time order; `InputError` names ids that no row has, and rows that wait in a circle."""
        problems = []
        rows: list[tuple[int, ...]] = []
        for line, names in self._parents:
            unknown = [name for name in names if name not in self._row_of]
            if unknown:
                message = f"{self._columns.parents} names {', '.join(map(show, unknown))}, which is no row's id"
                problems.append(Problem(f"line {line}", message))
            found = (self._row_of.get(name, LEFT_OUT) for name in names)
            rows.append(tuple(row for row in found if row != LEFT_OUT))
        circle = circle_in({row: parents for row, parents in enumerate(rows) if parents})
        if circle:
            names_ = " -> ".join(self._names[row] for row in (*circle, circle[0]))
            line = self._parents[circle[0]][0]
            problems.append(Problem(f"line {line}", f"{names_} wait for one another, so none of them can ever start"))
        if problems:
            raise InputError(problems[:50])
        return _in_order(rows, self._thinks, order)

    def _name(self, values: Mapping[str, Any]) -> str:
        column = self._columns.id or ""
        name = label(column, values.get(column))
        if name in self._row_of:
            raise RowError(f"{column} {show(name)} has come before; it must be unique")
        return name


def _in_order(rows: list[tuple[int, ...]], thinks: "array[int]", order: list[int] | None) -> Parents:
    place_of = {row: place for place, row in enumerate(order)} if order is not None else None
    of, starts, taken = array("q"), array("q", [0]), array("q")
    for row in order if order is not None else range(len(rows)):
        of.extend(parent if place_of is None else place_of[parent] for parent in rows[row])
        starts.append(len(of))
        taken.append(thinks[row])
    return Parents(of, starts, taken)
