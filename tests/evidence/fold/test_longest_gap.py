"""The longest gap of a request names what caused it, for each cause there is."""

from collections.abc import Callable

import pytest

from scheduler_core.evidence.fold.sweep import StepTime
from scheduler_core.evidence.fold.timeline import Timeline
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.records import Arrived, Preempted
from tests.evidence.scenes import ns


def step(begin: float, end: float) -> StepTime:
    return StepTime(ns(begin), ns(end), [("compute", "device", ns(begin), ns(end))])


def preempted(line: Timeline) -> None:
    line.wait_again(Preempted(ns(20), 0, 0, "no_blocks", 1, 10, 1), [])


def paused(line: Timeline) -> None:
    line.pause(ns(20))


def handed_over(line: Timeline) -> None:
    line.wait_for(IntervalClass.HANDOFF.value, ns(20), [])


def waited_for_room(line: Timeline) -> None:
    line.wait_for(IntervalClass.RESERVE_WAIT.value, ns(20), [])


def died(line: Timeline) -> None:
    line.lose(ns(20), [])


def held(line: Timeline) -> None:
    line.join(step(20, 90), "stalled", [])
    line.gap_stalled = "others_prefill"


def ahead(line: Timeline) -> None:
    line.join(step(20, 90), "decode", [])
    line.gap_prefill = True


def host(line: Timeline) -> None:
    """Nothing from 20 to 90: more than half of the gap of 80 ms lies between steps."""


def decoding(line: Timeline) -> None:
    line.join(step(20, 90), "decode", [])


CAUSES: dict[str, tuple[Callable[[Timeline], None], ...]] = {
    "preempted: no_blocks": (preempted,),
    "paused": (paused,),
    "handoff": (handed_over, waited_for_room),
    "instance_died": (died,),
    "stalled: others_prefill": (held,),
    "prefill_ahead": (ahead,),
    "host": (host,),
    "decode": (decoding,),
}


@pytest.mark.parametrize(("cause", "happens"), [(cause, one) for cause, all_ in CAUSES.items() for one in all_])
def test_each_cause_is_named(cause: str, happens: Callable[[Timeline], None]) -> None:
    """Tokens at 10, 20, 100 and 110: gaps 10, 80 and 10; what happened at 20 made the 80."""
    line = Timeline(Arrived(0, 0, 0, 10, 9, "t", "t"))
    for begin, end in ((0, 10), (10, 20)):
        line.join(step(begin, end), "decode", [])
        wait = line.emit(ns(end))
        if wait is not None:
            line.end_gap(wait)
    happens(line)
    line.join(step(90, 100), "decode", [])
    wait = line.emit(ns(100))
    assert wait == ns(80)
    assert line.end_gap(wait) == cause
    line.join(step(100, 110), "decode", [])
    wait = line.emit(ns(110))
    assert wait is not None and line.end_gap(wait) == "decode"
    assert (line.longest_gap, line.longest_index, line.cause) == (ns(80), 2, cause)
