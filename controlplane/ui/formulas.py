"""The switch on a page that shows figures by another tool's formulas beside Headway's."""

import math
from collections.abc import Callable
from itertools import groupby
from typing import Any

from django.http import HttpRequest

from scheduler_core.evidence.formulas.side_by_side import Arms, Beside, FormulaRow, side_by_side
from scheduler_core.evidence.formulas.tools import FORMULAS
from scheduler_core.evidence.schema import Figure


def formulas_switch(request: HttpRequest, read: Callable[[], Arms]) -> dict[str, Any]:
    """The tools to choose from and, where ``?formulas=`` names one, its table of the figures that ``read`` gives."""
    chosen = request.GET.get("formulas", "")
    if chosen not in FORMULAS:
        return {"tools": list(FORMULAS), "chosen": ""}
    arms = read()
    groups = [_group(list(rows)) for _, rows in groupby(side_by_side(arms, chosen).rows, lambda row: row.called)]
    return {
        "tools": list(FORMULAS),
        "chosen": chosen,
        "arms": list(arms),
        "groups": groups,
        "columns": 1 + 2 * len(arms),
    }


def _group(rows: list[FormulaRow]) -> dict[str, Any]:
    """Figures that one formula gives, which is told once."""
    shown = [{"row": row, "values": [_shown(beside) for beside in row.arms.values()]} for row in rows]
    return {"formula": rows[0], "rows": shown}


def _shown(beside: Beside) -> dict[str, Any]:
    """Both figures as a summary holds them, and whether the numbers differ."""
    ours, theirs = beside.headway, beside.theirs
    return {
        "headway": _stored(ours),
        "theirs": _stored(theirs),
        "apart": _apart(ours, theirs),
    }


def _apart(ours: Figure | None, theirs: Figure | None) -> bool:
    """Whether both have a value and these differ by more than rounding."""
    if ours is None or theirs is None or ours.value is None or theirs.value is None:
        return False
    return not math.isclose(ours.value, theirs.value, rel_tol=1e-9)


def _stored(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else figure.canonical()
