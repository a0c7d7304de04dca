"""Requests that decode along, accounted together: each takes its part when it leaves.

In every step each of them gets one token, after the same time as all others and for the same reasons. So nothing is
done for each of them in each step: sums run over the steps, and what a request was part of lies between two readings.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from scheduler_core.evidence.columns import Codes
from scheduler_core.evidence.fold.layout import GAP_INTS, TakesRows
from scheduler_core.evidence.fold.sweep import RANK, SEGMENTS, UNATTRIBUTED, StepTime
from scheduler_core.evidence.fold.timeline import CAUSE_DECODE, CAUSE_HOST, CAUSE_PREFILL_AHEAD, Reading, Timeline
from scheduler_core.types.plan import Phase
from scheduler_core.types.time import Ns

_LOST = RANK[UNATTRIBUTED]
_DECODE = Phase.DECODE.value
_KEPT = 1 << 16
_WIDTH = 3


class Crowd:
    """The requests of one instance that decode along, and sums over the steps since the first of them came.

    ``last_ns`` is when the tokens of the newest step were available: the last token of every member.
    """

    def __init__(self, gaps: TakesRows, causes: Codes) -> None:
        self.members: dict[int, Timeline] = {}
        self.last_ns: Ns = 0
        self._gaps, self._causes = gaps, causes
        self._steps = self._first = 0  # number of steps; number of the first one that is remembered
        self._work: Ns = 0
        self._segments = [0] * len(SEGMENTS)
        self._past = array("q")  # of each step that is remembered: when it ended, the gap that it made, and its cause

    def enter(self, request: int, line: Timeline) -> None:
        """``request`` had a token in the newest step, not its first, and decodes along from the next one on."""
        line.settle()
        line.along = self._reading()
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
        self._past.extend((shape.end_ns, gap, self._causes.code(cause)))
        if len(self._past) > 2 * _KEPT * _WIDTH:
            self._forget()

    def release(self, request: int) -> None:
        """``request`` decodes along no more: write down in its line what it was part of; nothing if it is no member."""
        line = self.members.pop(request, None)
        if line is None:
            return
        assert line.along is not None  # set by `enter`
        steps = self._steps - line.along.steps
        if not steps:
            line.along = None
            return
        past = np.frombuffer(self._past[(line.along.steps - self._first) * _WIDTH :], dtype=np.int64).reshape(steps, -1)
        rows = np.empty((steps, len(GAP_INTS)), dtype=np.int64)
        rows[:, 0] = request
        rows[:, 1] = np.arange(line.tokens, line.tokens + steps)
        rows[:, 2:] = past
        self._gaps.extend(rows)
        longest = int(past[:, 1].argmax())  # the first of equal ones
        _, gap, cause = past[longest].tolist()
        line.decoded_along(self._reading(), self.last_ns, (gap, longest, self._causes.values[cause]))

    def release_all(self, requests: Sequence[int]) -> None:
        """As `release`, for each of ``requests``."""
        for request in requests:
            self.release(request)

    def _reading(self) -> Reading:
        return Reading(self._steps, self._work, tuple(self._segments))

    def _forget(self) -> None:
        """Drop what no member was part of. O(members)."""
        oldest = min(line.along.steps for line in self.members.values() if line.along is not None)
        del self._past[: (oldest - self._first) * _WIDTH]
        self._first = oldest
