"""Figures of arms by another tool's formulas beside ours, in a terminal."""

from typing import TYPE_CHECKING

from headway.cli.output import say, table

if TYPE_CHECKING:
    from scheduler_core.evidence.formulas.side_by_side import FormulaRow, FormulaTable
    from scheduler_core.evidence.schema import Figure


def print_formulas(found: "FormulaTable") -> None:
    """A row a figure with both values of each arm, then both formulas of each and why they differ."""
    arms = list(found.rows[0].arms)
    if not arms:
        say("no figures yet")
        return
    sides = ["Headway"] if found.tool is None else ["Headway", found.tool]
    table(
        ["figure", *(f"{arm}: {side}" for arm in arms for side in sides)],
        [[row.metric, *(value for arm in arms for value in _values(row, arm, len(sides)))] for row in found.rows],
    )
    if found.tool is None:
        return
    print(f"\n{found.tool}'s own name and formula of each, over the requests that Headway's figures are of:")
    for row in (row for row in found.rows if row.metric.endswith(("_mean_ms", "_share"))):
        stem = row.metric.removesuffix("_mean_ms")
        print(f"  {stem} ({row.called}): {row.formula}")
        if row.differs:
            print(f"    Headway's: {row.headway_formula or 'none'}")
            print(f"    differs from Headway's: {row.differs}")


def _values(row: "FormulaRow", arm: str, sides: int) -> list[str]:
    beside = row.arms[arm]
    return [_text(beside.headway, row.unit), _text(beside.theirs, row.unit)][:sides]


def _text(figure: "Figure | None", unit: str) -> str:
    from scheduler_core.verdict.wording import amount

    if figure is None:
        return "no such figure"
    return amount(figure.value, unit) if figure.value is not None else str(figure.absence).replace("_", " ")
