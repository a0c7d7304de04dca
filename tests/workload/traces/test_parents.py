"""Rows that wait for other rows: agent traces."""

import io
from typing import Any

import pytest

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Trace, WorkloadSpec
from scheduler_core.types.errors import InputError
from scheduler_core.types.time import NS_PER_MS
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.plan import ArrivalPlan
from scheduler_core.workload.traces.reader import read_trace

COLUMNS = {"arrival": "at", "prompt_tokens": "in", "output_tokens": "out", "id": "id", "parents": "after"}
JSONL = """\
{"at": 0, "in": 100, "out": 10, "id": "plan", "after": []}
{"at": 40, "in": 110, "out": 5, "id": "join", "after": ["search", "read"], "wait": 7}
{"at": 10, "in": 50, "out": 20, "id": "search", "after": "plan", "wait": 2}
{"at": 10, "in": 60, "out": 30, "id": "read", "after": ["plan"]}
{"at": 15, "in": 70, "out": 3, "id": 8}
"""
CSV = """\
at,in,out,id,after,wait
0,100,10,plan,,
40,110,5,join,search;read,7
10,50,20,search,plan,2
10,60,30,read,plan,
15,70,3,8,,
"""


def trace(**changes: Any) -> Trace:
    return Trace.model_validate({"file": "t", "time_unit": "ms", "columns": {**COLUMNS, "think": "wait"}, **changes})


def frozen(text: str, **changes: Any) -> ArrivalPlan:
    spec = trace(**changes)
    return freeze(parse(WorkloadSpec, {"trace": spec.canonical()}), trace=read_trace(io.BytesIO(text.encode()), spec))


@pytest.mark.parametrize("text", [JSONL, CSV])
def test_rows_wait_for_their_parents(text: str) -> None:
    """In time order: plan, search, read, 8, join. Who waits has its think time instead of a time of its own."""
    plan = frozen(text)
    assert [(r.prompt_tokens, r.after, r.arrival_ns // NS_PER_MS) for r in plan.requests] == [
        (100, (), 0),
        (50, (0,), 2),
        (60, (0,), 0),
        (70, (), 15),
        (110, (1, 2), 7),
    ]
    assert any("the last of them has ended" in note for note in plan.notes)


def test_a_plan_with_several_parents_is_read_back_as_it_was(tmp_path: Any) -> None:
    plan = frozen(JSONL)
    plan.write(tmp_path / "plan")
    assert ArrivalPlan.read(tmp_path / "plan").requests == plan.requests


def test_parents_outside_the_played_rows_have_ended_before() -> None:
    """Rows 3 to 5 (read, 8, join): read comes at its own time, join waits for read alone."""
    plan = frozen(JSONL, rows="3-5")
    assert [(r.after, r.arrival_ns // NS_PER_MS) for r in plan.requests] == [((), 0), ((), 5), ((0,), 7)]


def test_nobody_waits_for_a_failed_call_that_is_left_out() -> None:
    plan = frozen(CSV.replace("10,60,30,read", "10,60,0,read"))
    assert [r.after for r in plan.requests] == [(), (0,), (), (1,)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"after": []}', '"after": ["join"]}', r"line 1.*'?plan -> join -> search -> plan wait for one another"),
        ('"after": ["plan"]', '"after": ["plna"]', r"line 4.*after names 'plna', which is no row's id"),
        ('"id": 8', '"id": "read"', r"line 5.*id 'read' has come before; it must be unique"),
        ('"id": 8', '"ID": 8', r"line 5.*id is None; a name has 1 to 64"),
        ('"wait": 7', '"wait": -7', r"line 2.*wait is -7; a time cannot be negative"),
    ],
)
def test_refusals_name_the_line_and_the_ids(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(io.BytesIO(JSONL.replace(old, new).encode()), trace())


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"parents": "after"}, "parents: they are named by id"), ({"id": "id", "think": "w"}, "think: it counts from")],
)
def test_columns_that_mean_nothing_alone_are_refused(columns: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(Trace, {"file": "t", "columns": columns})


def test_parents_are_part_of_the_digest() -> None:
    spec = trace()
    fewer = JSONL.replace('"search", "read"', '"read"')
    digests = [read_trace(io.BytesIO(text.encode()), spec).digest for text in (JSONL, fewer)]
    assert digests[0] != digests[1]
