"""Requests that decode along, accounted together: each takes its part when it leaves.

In every step each of them gets one token, after the same time as all others and for the same reasons. So nothing is
done for each of them in each step: sums run over the steps, and what a request was part of lies between two readings.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from scheduler_core.evidence.columns import Codes
from scheduler_core.evidence.layout import TakesColumns
from scheduler_core.evidence.sweep import RANK, SEGMENTS, UNATTRIBUTED, StepTime
from scheduler_core.evidence.timeline import CAUSE_DECODE, CAUSE_HOST, CAUSE_PREFILL_AHEAD, Reading, Timeline
from scheduler_core.types.plan import Phase
from scheduler_core.types.time import Ns

_LOST = RANK[UNATTRIBUTED]
_DECODE = Phase.DECODE.value
_KEPT = 1 << 16


class Crowd:
    """The requests of one instance that decode along, and sums over the steps since the first of them came.

    ``last_ns`` is when the tokens of the newest step were available: the last token of every member.
    """

    def __init__(self, gaps: TakesColumns, causes: Codes) -> None:
        self.members: dict[int, Timeline] = {}
        self.last_ns: Ns = 0
        self._gaps, self._causes = gaps, causes
        self._steps = self._first = 0  # number of steps; number of the first one that is remembered
        self._work: Ns = 0
        self._segments = [0] * len(SEGMENTS)
        self._at, self._gap, self._cause = array("q"), array("q"), array("q")

    def enter(self, request: int, line: Timeline) -> None:
        """``request`` had a token in the newest step, not its first, and decodes along from the next one on."""
        line.settle()
        line.along = Reading(self._steps, self._work, tuple(self._segments))
        self.members[request] = line

    def step(self, shape: StepTime, *, has_prefill: bool) -> None:
        """A step in which every member got one token."""
        if not self.members:
            self.last_ns = shape.end_ns
            return
        gap, idle = shape.end_ns - self.last_ns, shape.planned_ns - self.last_ns
        cause = CAUSE_HOST if 2 * idle > gap else CAUSE_PREFILL_AHEAD if has_prefill else CAUSE_DECODE
        self._segments[_LOST] += shape.start_ns - self.last_ns
        for rank, spent in shape.totals(_DECODE):
            self._segments[rank] += spent
        self._steps += 1
        self._work += shape.work_ns
        self.last_ns = shape.end_ns
        self._at.append(shape.end_ns)
        self._gap.append(gap)
        self._cause.append(self._causes.code(cause))
        if len(self._at) > 2 * _KEPT:
            self._forget()

    def release(self, request: int) -> None:
        """``request`` decodes along no more: write down in its line what it was part of; nothing if it is no member."""
        line = self.members.pop(request, None)
        if line is None:
            return
        since, line.along = line.along, None
        assert since is not None  # set by `enter`
        steps = self._steps - since.steps
        if not steps:
            return
        part = slice(since.steps - self._first, self._steps - self._first)
        gaps, causes = np.array(self._gap[part]), np.array(self._cause[part])
        tokens = np.arange(line.tokens, line.tokens + steps)
        self._gaps.extend(np.full(steps, request), tokens, np.array(self._at[part]), gaps, causes)
        longest = int(gaps.argmax())  # the first of equal ones
        line.decoded_along(
            steps,
            self.last_ns,
            self._work - since.work,
            [now - before for now, before in zip(self._segments, since.segments, strict=True)],
            (int(gaps[longest]), longest, self._causes.values[causes[longest]]),
        )

    def release_all(self, requests: Sequence[int]) -> None:
        """As `release`, for each of ``requests``."""
        for request in requests:
            self.release(request)

    def _forget(self) -> None:
        """Drop what no member was part of. O(members)."""
        oldest = min(line.along.steps for line in self.members.values() if line.along is not None)
        for kept in (self._at, self._gap, self._cause):
            del kept[: oldest - self._first]
        self._first = oldest
