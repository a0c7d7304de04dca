"""The audit finds each kind of lie, names rule, record and numbers, and passes honest records."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from scheduler_core.evidence.audit import checks as audited
from scheduler_core.types.records import Arrived, Finished, Paused, Record, RunStarted, Step, Swapped
from tests.evidence.played import summarise
from tests.evidence.scenes import Scene, ns


def honest() -> list[Record]:
    """Two requests: prefill 0-10 and 10-20, both decode 20-25, 25-30."""
    scene = Scene(2)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 10, [(0, 10)])
    scene.arrive(1, 10)
    scene.admit(1, 10)
    scene.step(10, 20, [(0, 1), (1, 10)])
    scene.step(20, 25, [(0, 1), (1, 1)])
    scene.step(25, 30, [(0, 1), (1, 1)])
    scene.finish(0, 30)
    scene.finish(1, 30)
    return scene.end(30)


Lie: TypeAlias = Callable[[list[Record]], list[Record]]


def step(number: int, **changes: Any) -> Lie:
    def lie(records: list[Record]) -> list[Record]:
        return [
            replace(record, **changes) if isinstance(record, Step) and record.id == number else record
            for record in records
        ]

    return lie


def grants(number: int, change: Callable[[list[Any]], list[Any]]) -> Lie:
    def lie(records: list[Record]) -> list[Record]:
        return [
            replace(record, grants=change(list(record.grants)))
            if isinstance(record, Step) and record.id == number
            else record
            for record in records
        ]

    return lie


def without(kind: type[Record], request: int) -> Lie:
    return lambda records: [r for r in records if not (isinstance(r, kind) and getattr(r, "request", None) == request)]


def finished(**changes: Any) -> Lie:
    return lambda records: [replace(r, **changes) if isinstance(r, Finished) and r.request == 1 else r for r in records]


def test_honest_records_pass(tmp_path: Path) -> None:
    summary = summarise(honest(), tmp_path)
    assert summary.audit.passed
    assert summary.audit.violations == []
    assert all(summary.audit.checks[rule] for rule in ("budget", "resident once", "R4 additivity", "blocks conserved"))


JUMP = [(0, 0, 5, 1, "decode", 1, 0)]
ANEW = [(0, 0, 11, 1, "recompute", 1, 0)]
HOLE = step(3, planned_ns=ns(22), lanes=[("compute", "device", ns(22), ns(25))])
LIES: dict[str, tuple[Lie, str, str, str]] = {
    "lost blocks": (step(2, kv_free=80), "blocks conserved", "step 2", "10 + 0 + 80 is not 100"),
    "over budget": (step(2, budget=8), "budget", "step 2", "11 tokens over 8"),
    "backwards": (step(3, available_ns=ns(15)), "no negative duration", "step 3", "took -5000000 ns"),
    "skipped": (grants(3, lambda rows: rows[:1]), "resident once", "step 3 request 1", "granted or stalled 0 times"),
    "twice": (grants(3, lambda rows: [*rows, rows[0]]), "resident once", "step 3 request 0", "stalled 2 times"),
    "jump": (grants(3, lambda rows: JUMP + rows[1:]), "tokens contiguous", "step 3 request 0", "from 5, due from 11"),
    "anew": (grants(3, lambda rows: ANEW + rows[1:]), "R8 recompute once", "step 3 request 0", "nothing was lost"),
    "lost request": (without(Finished, 1), "offered = outcomes", "run", "2 offered, 1 ended"),
    "ghost": (without(Arrived, 1), "offered = outcomes", "admitted request 1", "before it arrived"),
    "invented": (finished(output_tokens=9), "emitted = declared", "finished request 1", "emitted 3, declared 9"),
    "early": (finished(at_ns=ns(29)), "R25 ordering", "finished request 1", "ended at 29000000 ns"),
    "hole": (HOLE, "R4 additivity", "request 0", "2000000 ns of 30000000 ns unattributed"),
}


@pytest.mark.parametrize(("lie", "rule", "where", "message"), LIES.values(), ids=LIES.keys())
def test_each_lie_is_found(lie: Lie, rule: str, where: str, message: str, tmp_path: Path) -> None:
    summary = summarise(lie(honest()), tmp_path)
    found = [v for v in summary.audit.violations if v.rule == rule and v.where == where]
    assert not summary.audit.passed
    assert any(message in violation.message for violation in found), summary.audit.violations


def test_request_cancelled_while_its_step_ran_is_no_fault(tmp_path: Path) -> None:
    """The cancel is delivered before the step's result: the step still names it, without a token."""
    scene = Scene(2)
    scene.arrive(0, 0)
    scene.arrive(1, 0)
    scene.admit(0, 0)
    scene.admit(1, 0)
    scene.finish(1, 5, "cancelled")
    scene.step(0, 10, [(0, 10), (1, 4)])
    scene.finish(0, 10)
    summary = summarise(scene.end(10), tmp_path)
    assert summary.audit.violations == []
    assert (summary.outcomes["cancelled"], summary.outcomes["finished"]) == (1, 1)


@pytest.mark.parametrize(("epoch", "found"), [(1, []), (0, ["swapped request 0"]), (2, ["swapped request 0"])])
def test_kv_goes_to_the_host_in_the_epoch_after_the_one_that_was_paused(
    epoch: int, found: list[str], tmp_path: Path
) -> None:
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 10, [(0, 10)])
    scene.add(Paused(ns(10), 0, 0, "keep", "priority", 1, 10, 1))
    scene.add(Swapped(ns(10), 0, epoch, "host", 1, 10, 1))
    violations = summarise(scene.end(10), tmp_path).audit.violations
    assert [violation.where for violation in violations if violation.rule == "paused once"] == found


def test_real_targets_may_leave_a_millisecond(tmp_path: Path) -> None:
    """Host time between steps that no lane covers: 0.9 ms of 11 passes on kernels, and never on the model."""
    scene = Scene(1, source="kernel")
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 5, [(0, 10)])
    scene.step(5.9, 11, [(0, 1)])
    scene.finish(0, 11)
    records = scene.end(11)
    assert summarise(records, tmp_path).audit.passed
    assert isinstance(records[0], RunStarted)
    modelled = [replace(records[0], level="simulation", source="modelled"), *records[1:]]
    assert not summarise(modelled, tmp_path).audit.passed


def test_what_the_audit_says_it_enforces_is_what_it_names() -> None:
    """Every check that is described is one that a violation names, and the other way round."""
    folder = Path(audited.__file__).parent
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    described = text.index("CHECKS: dict"), text.index("@dataclass", text.index("CHECKS: dict"))
    elsewhere = text[: described[0]] + text[described[1] :]
    named = set(re.findall(r'(?:_fault\(|yield )\(?"([^"]+)"', elsewhere))
    assert named <= audited.CHECKS.keys()
    assert [check for check in audited.CHECKS if f'"{check}"' not in elsewhere] == []
