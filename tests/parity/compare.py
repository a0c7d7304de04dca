"""Where two drives of one scenario part, and which known difference between versions that is."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest

from tests.parity.drives import Step
from tests.parity.scenarios import Settings


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step in which two drives differ; None where a drive had ended."""

    number: int
    ours: Step | None
    theirs: Step | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that changed in vLLM ``since`` a version: before it, steps for which ``shows`` holds differ from ours."""

    since: tuple[int, int]
    meaning: str
    shows: Callable[[Settings, Step, Step], bool]


def _ended_by_self_preemption(settings: Settings, ours: Step, theirs: Step) -> bool:
    """Theirs granted only the beginning of what ours did, and the one it preempted last asked for nothing else."""
    same = theirs.grants == ours.grants[: len(theirs.grants)] and theirs.preempted == ours.preempted
    return settings.by_priority and bool(theirs.preempted) and same


RULES = (
    Rule(
        (0, 33),
        "Under priorities a request that preempted itself ended the step's pass over the running requests; those behind"
        " it are served since (V-15).",
        _ended_by_self_preemption,
    ),
)


def without_blocks(steps: Iterable[Step]) -> Iterable[Step]:
    """The same decisions, whichever blocks they took."""
    for step in steps:
        yield Step(tuple((number, start, tokens, ()) for number, start, tokens, _ in step.grants), step.preempted)


def first_difference(ours: Iterable[Step], theirs: Iterable[Step]) -> Difference | None:
    """None when both made the same decisions to the end."""
    for number, (mine, other) in enumerate(zip_longest(ours, theirs)):
        if mine != other:
            return Difference(number, mine, other)
    return None


def explanation(found: Difference, settings: Settings, version: str) -> Rule | None:
    """The rule that had not changed yet in vLLM ``version`` and explains ``found``."""
    if found.ours is None or found.theirs is None:
        return None
    major, minor = re.findall(r"\d+", version)[:2]
    for rule in RULES:
        if (int(major), int(minor)) < rule.since and rule.shows(settings, found.ours, found.theirs):
            return rule
    return None
