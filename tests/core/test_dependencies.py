"""Requests that wait for several others: agents that fan out and come together again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.testing.builders import play, policy_spec, request
from scheduler_core.types.dependencies import Dependents, circle_in, dependents_of
from scheduler_core.types.errors import CallerError
from scheduler_core.types.records import Arrived, Finished
from scheduler_core.types.time import NS_PER_MS

VLLM = policy_spec("vllm_v1")


def test_a_fan_out_comes_together_by_hand() -> None:
    """A step takes 1 ms, each request as many steps as it has output tokens.

    Request 0 (2 tokens) ends at 2 ms; 1 and 2 follow at once and end at 2 + 3 = 5 and 2 + 8 = 10; 3 waits for both and
    thinks 4 ms: it arrives at 14, not at 9.
    """
    program = [
        request(0, 10, 2),
        request(1, 10, 3, after=(0,)),
        request(2, 10, 8, after=(0,)),
        request(3, 10, 1, at_ms=4, after=(1, 2)),
    ]
    played = play(VLLM, program)
    arrived = {record.request: record.at_ns // NS_PER_MS for record in played.sink.of(Arrived)}
    assert arrived == {0: 0, 1: 2, 2: 2, 3: 14}
    assert played.report.outcomes == {"finished": 4}


def test_a_parent_that_was_refused_or_cancelled_has_ended_too() -> None:
    """Request 0 is refused at 0, 1 is given up at 3 ms; 2 waits for both and comes at 3."""
    program = [request(0, 99_999, 1), request(1, 10, 50, cancel_ns=3 * NS_PER_MS), request(2, 10, 1, after=(0, 1))]
    played = play(VLLM, program)
    arrived = {record.request: record.at_ns // NS_PER_MS for record in played.sink.of(Arrived)}
    assert arrived[2] == 3
    assert {r.request: r.outcome for r in played.sink.of(Finished)} == {0: "rejected", 1: "cancelled", 2: "finished"}


def test_the_latest_end_counts_in_whatever_order_ends_are_told() -> None:
    """Ends of real clients are told as they are noticed: 9 before 4. The child is due 2 after the later one."""
    dependents = Dependents()
    child = request(5, 1, 1, at_ms=2)
    dependents.add(child, (3, 4, 3))
    assert len(dependents) == 1
    assert dependents.ended(3, 9 * NS_PER_MS) == []
    assert dependents.ended(3, 9 * NS_PER_MS) == []
    assert dependents.on(4) == [child]
    assert dependents.ended(4, 4 * NS_PER_MS) == [(11 * NS_PER_MS, child)]
    assert len(dependents) == 0


@pytest.mark.parametrize(
    ("parents", "named"),
    [
        ({1: (2,), 2: (3, 0), 3: (1,)}, "requests 1 -> 2 -> 3 -> 1 wait for one another"),
        ({2: (2,)}, "requests 2 -> 2 wait for one another"),
        ({1: (0, 7)}, "request 1 waits for 7, which is not in the plan"),
    ],
)
def test_what_can_never_start_is_refused_by_name(parents: Any, named: str) -> None:
    plan = [request(index, 5, 1, after=parents.get(index, ())) for index in range(4)]
    with pytest.raises(CallerError, match=named):
        dependents_of(plan)


@given(st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=10))
def test_a_circle_is_found_exactly_when_not_everybody_can_start(waits_for: Any) -> None:
    """Against taking away again and again whoever waits for nobody who is left."""
    left = dict(waits_for)
    while True:
        ready = [number for number, parents in left.items() if not any(parent in left for parent in parents)]
        if not ready:
            break
        for number in ready:
            del left[number]
    circle = circle_in(waits_for)
    assert bool(circle) == bool(left)
    for number, following in zip(circle, (*circle[1:], *circle[:1]), strict=True):
        assert following in waits_for[number]


def test_a_long_chain_takes_no_recursion() -> None:
    assert circle_in({index: (index + 1,) for index in range(50_000)}) == ()


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 3), st.sets(st.integers(0, 11), max_size=3)),
        min_size=2,
        max_size=12,
    )
)
def test_everybody_comes_a_think_time_after_the_last_parent(rows: Any) -> None:
    plan = []
    for index, (output, think, parents) in enumerate(rows):
        after = tuple(sorted(parent for parent in parents if parent < index))
        plan.append(request(index, 5, output, at_ms=think, after=after))
    played = play(policy_spec("vllm_v1", batch__size=2), plan)
    came = {record.request: record.at_ns for record in played.sink.of(Arrived)}
    ended = {record.request: record.at_ns for record in played.sink.of(Finished)}
    for planned in plan:
        last = max((ended[parent] for parent in planned.after), default=0)
        assert came[planned.index] == last + planned.arrival_ns
