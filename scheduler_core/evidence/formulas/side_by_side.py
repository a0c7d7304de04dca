"""Headway's figures of runs beside those of another tool, each with its formula and why the two differ."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from scheduler_core.evidence.formulas.tools import FORMULAS, Formula
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import Absence, Figure, RunSummary
from scheduler_core.spec.base import Spec
from scheduler_core.types.errors import InputError, Problem

Arms: TypeAlias = Mapping[str, Sequence[RunSummary]]


class Beside(Spec):
    """One figure of one arm: ``headway`` is None where Headway has no such figure, ``theirs`` where none was chosen."""

    headway: Figure | None
    theirs: Figure | None


class FormulaRow(Spec):
    """One figure: its formula here and there, why the two differ (empty where they agree), and its values by arm.

    ``called`` is the tool's own name for it.
    """

    metric: str
    unit: str
    headway_formula: str
    called: str = ""
    formula: str = ""
    differs: str = ""
    arms: dict[str, Beside]


class FormulaTable(Spec):
    """Figures of arms, by the formulas of ``tool`` beside Headway's where one is chosen; of several runs the mean.

    A tool's figures are over the requests that Headway's own are of, so that the formula alone makes the difference.
    """

    tool: str | None
    rows: list[FormulaRow]


def known_tool(tool: str) -> str:
    """``tool``, or `InputError` naming those whose formulas are known."""
    if tool not in FORMULAS:
        raise InputError([Problem("formulas", f"{tool!r} is not one of {', '.join(FORMULAS)}")])
    return tool


def by_arm(runs: Iterable[RunSummary]) -> dict[str, list[RunSummary]]:
    """Runs under their arm, both in the order given."""
    arms: dict[str, list[RunSummary]] = {}
    for run in runs:
        arms.setdefault(run.arm, []).append(run)
    return arms


def side_by_side(arms: Arms, tool: str | None) -> FormulaTable:
    """Figures of the runs of ``arms``: those that ``tool`` has, or all without one.

    Raises:
        InputError: ``tool`` is none whose formulas are known.
    """
    if tool is None:
        return FormulaTable(tool=None, rows=[_own(name, arms) for name in METRICS])
    formulas = FORMULAS[known_tool(tool)]
    return FormulaTable(
        tool=tool, rows=[_row(tool, formula, name, arms) for formula in formulas for name in formula.names]
    )


def _own(name: str, arms: Arms) -> FormulaRow:
    metric = METRICS[name]
    values = {arm: _mean([run.metrics.get(name) for run in runs], metric.unit) for arm, runs in arms.items()}
    return FormulaRow(
        metric=name,
        unit=metric.unit,
        headway_formula=metric.formula,
        arms={arm: Beside(headway=value, theirs=None) for arm, value in values.items()},
    )


def _row(tool: str, formula: Formula, name: str, arms: Arms) -> FormulaRow:
    own = _own(name, arms) if name in METRICS else None
    unit = own.unit if own is not None else "ms"
    theirs = {arm: _mean([run.by_tool.get(tool, {}).get(name) for run in runs], unit) for arm, runs in arms.items()}
    return FormulaRow(
        metric=name,
        unit=unit,
        headway_formula=own.headway_formula if own is not None else "",
        called=formula.called,
        formula=formula.text,
        differs=formula.differs,
        arms={
            arm: Beside(headway=own.arms[arm].headway if own is not None else None, theirs=value)
            for arm, value in theirs.items()
        },
    )


def _mean(found: Sequence[Figure | None], unit: str) -> Figure:
    """Mean over runs; absent as in the first run that has none."""
    figures = [
        figure or Figure(value=None, unit=unit, absence=Absence.NOT_MEASURED, note="not in the run's summary")
        for figure in found
    ]
    lacking = next((figure for figure in figures if figure.value is None), None)
    if lacking is not None:
        return lacking
    values = [figure.value for figure in figures if figure.value is not None]
    samples = [figure.n for figure in figures if figure.n is not None]
    notes = {figure.note for figure in figures}
    return Figure(
        value=sum(values) / len(values),
        unit=unit,
        n=sum(samples) if len(samples) == len(figures) else None,
        note=notes.pop() if len(notes) == 1 else "",
    )
