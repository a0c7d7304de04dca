"""What was decided in a run, as one digest: equal for equal decisions, however they were written down."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from scheduler_core.types.plan import Phase
from scheduler_core.types.records import Step, Steps

_DECODE = Phase.DECODE.value

Rows = Iterable[tuple[int, int, int, int, str, int, int]]
# What stays the same of a request that gets one token in step after step: epoch, and position less number of the step.
Course = tuple[int, int]


@dataclass
class _Newest:
    """Who got one decoded token in an instance's newest step: all of them, and those not by decoding along."""

    course: dict[int, Course] = field(default_factory=dict)
    apart: set[int] = field(default_factory=set)


@dataclass
class Decisions:
    """Takes the steps of a run in order.

    The digest is chained over what changes from a step to the next: who starts and who stops getting one decoded token
    a step, and every other grant. ``initial_cache_blocks`` is what the cache held before the first step.
    """

    steps: int = 0
    initial_cache_blocks: int = 0
    _chain: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    _newest: defaultdict[int, _Newest] = field(default_factory=lambda: defaultdict(_Newest))

    def take(self, step: Step, block_size: int) -> None:
        """Chain one step."""
        self._begin(step.grants, step.kv_cached, block_size)
        self.steps += 1
        newest = self._newest[step.instance]
        course, others = _courses(step.grants, step.id)
        self._chain_changes(step, newest.course, course, gone=newest.course.keys() - course.keys(), others=others)
        newest.course, newest.apart = course, set(course)

    def take_stretch(self, steps: Steps, block_size: int) -> None:
        """As `take`, for each of ``steps``. O(changes)."""
        self._begin(steps.grants, steps.kv_cached[0], block_size)
        self.steps += len(steps.available_ns)
        newest = self._newest[steps.instance]
        apart, others = _courses(steps.grants, steps.id)
        course = apart | {request: (epoch, start - steps.id) for request, epoch, start in steps.joined}
        gone = {request for request in (*steps.left, *newest.apart) if request not in course}
        self._chain_changes(steps, newest.course, course, gone=gone, others=others)
        for request in gone:
            del newest.course[request]
        newest.course |= course
        newest.apart = set(apart)

    def hexdigest(self) -> str:
        """The digest of all steps so far."""
        whole = self._chain.copy()
        whole.update(f"{self.steps} steps".encode())
        return str(whole.hexdigest())

    def _begin(self, grants: Rows, cached: int, block_size: int) -> None:
        """Nothing can be hit in the first step unless the cache was warm before."""
        if not self.steps:
            hits = sum(grant[6] for grant in grants)
            self.initial_cache_blocks = cached + hits // max(block_size, 1)

    def _chain_changes(
        self,
        step: Step | Steps,
        before: dict[int, Course],
        now: dict[int, Course],
        *,
        gone: set[int],
        others: list[str],
    ) -> None:
        came = sorted((request, *course) for request, course in now.items() if before.get(request) != course)
        if came or gone or others or step.copied_out or step.copied_in:
            copied: tuple[int, ...] = (step.copied_out, step.copied_in)
            if step.copied_on_write:
                copied += (step.copied_on_write,)
            self._chain.update(f"{step.instance}/{step.id}|{sorted(others)}|{came}|{sorted(gone)}|{copied}".encode())


def _courses(grants: Rows, step: int) -> tuple[dict[int, Course], list[str]]:
    """Requests that get one decoded token, and all other grants as text."""
    course: dict[int, Course] = {}
    others: list[str] = []
    for request, epoch, start, length, phase, sampled, hit in grants:
        if length == 1 and sampled and phase == _DECODE:
            course[request] = epoch, start - step
        else:
            others.append(f"{request},{epoch},{start},{length},{phase},{sampled},{hit}")
    return course, others
