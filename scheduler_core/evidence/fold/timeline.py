"""The time of one open request, accounted as its steps pass."""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler_core.evidence.fold.chunks import even_gaps
from scheduler_core.evidence.fold.sweep import (
    GAVE_WAY,
    RANK,
    REQUEUE,
    SEGMENTS,
    UNATTRIBUTED,
    Segment,
    StepTime,
    sweep,
    total_by_rank,
)
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.records import Arrived, Preempted
from scheduler_core.types.time import Ns

_QUEUE = IntervalClass.QUEUE.value
_PAUSED = IntervalClass.PAUSED.value
_LOST = RANK[UNATTRIBUTED]

# What the longest wait between two tokens was spent on, most telling first.
CAUSE_DIED = "instance_died"
CAUSE_PREEMPTED = "preempted"
CAUSE_HANDOFF = "handoff"
CAUSE_PAUSED = "paused"
CAUSE_STALLED = "stalled"
CAUSE_PREFILL_AHEAD = "prefill_ahead"
CAUSE_HOST = "host"
CAUSE_DECODE = "decode"


class Reading(NamedTuple):
    """How far the sums over steps were, of a crowd that a request came into: `scheduler_core.evidence.fold.crowd`."""

    steps: int
    work: Ns
    segments: tuple[Ns, ...]


class Timeline:
    """Accumulates the sweep of one request; `segments` holds ns per rank of `SEGMENTS`.

    Where a request's steps do not overlap in time, each is accounted by its precomputed totals. Overlapping ones are
    swept together, and settled as far as no later step can reach: steps begin in order. ``cursor`` is the instant up to
    which time is accounted. ``work`` is what the lanes of its steps took together, whether on its path or hidden.
    """

    __slots__ = (
        "along",
        "arrived",
        "cause",
        "chunks",
        "cursor",
        "degraded",
        "first_gap",
        "first_token",
        "gap_handoff",
        "gap_host",
        "gap_lost",
        "gap_paused",
        "gap_preempted",
        "gap_prefill",
        "gap_stalled",
        "hit_tokens",
        "host_hit_tokens",
        "instance",
        "last_token",
        "longest_gap",
        "longest_index",
        "lost_until",
        "pauses",
        "pending",
        "pending_end",
        "preemptions",
        "prefilled",
        "recomputed",
        "rehit_tokens",
        "segments",
        "segments_at_first",
        "shared_tokens",
        "stall_cause",
        "stalled_steps",
        "steps",
        "tokens",
        "waiting_kind",
        "waiting_since",
        "work",
    )

    def __init__(self, arrived: Arrived) -> None:
        self.arrived = arrived
        self.instance = 0
        self.cursor: Ns = arrived.at_ns
        self.segments = [0] * len(SEGMENTS)
        self.segments_at_first: list[Ns] | None = None
        self.waiting_since: Ns | None = arrived.at_ns
        self.waiting_kind = _QUEUE
        self.pending: list[tuple[StepTime, str]] = []
        self.pending_end: Ns = arrived.at_ns
        self.first_token: Ns | None = None
        self.last_token: Ns | None = None
        self.tokens = self.chunks = self.steps = self.stalled_steps = self.preemptions = self.recomputed = 0
        self.hit_tokens: int | None = None
        self.rehit_tokens = self.host_hit_tokens = self.shared_tokens = self.prefilled = 0
        self.first_gap: Ns | None = None
        self.longest_gap: Ns | None = None
        self.longest_index = 0
        self.cause = ""
        self.degraded = ""
        self.stall_cause = ""
        self.gap_lost = self.gap_handoff = self.gap_paused = False
        self.pauses = 0
        self.lost_until: int | None = None  # how far it had been computed; None where no record says so
        self.gap_preempted = self.gap_stalled = ""
        self.gap_prefill = False
        self.gap_host: Ns = 0
        self.work: Ns = 0
        self.along: Reading | None = None

    def join(self, shape: StepTime, role: str, loads: Sequence[Segment]) -> None:
        """The request takes part in a step as ``role`` (a phase, or stalled); a wait ends with the step's planning."""
        if self.waiting_since is not None:
            self._end_wait(shape.planned_ns, loads)
        elif self.pending and shape.start_ns >= self.pending_end:
            self.settle()
        elif self.pending:
            self._settle_until(shape.start_ns)
        if not self.pending and shape.planned_ns > self.cursor:
            self.gap_host += shape.planned_ns - self.cursor
        self.pending.append((shape, role))
        if shape.end_ns > self.pending_end:
            self.pending_end = shape.end_ns

    def pause(self, at_ns: Ns) -> None:
        """The request stopped with what it had computed, and waits to go on."""
        self.pauses += 1
        self.gap_paused = True
        self.waiting_since = at_ns
        self.waiting_kind = _PAUSED

    def wait_again(self, record: Preempted, loads: Sequence[Segment]) -> None:
        """The request was preempted, running or paused, and waits for room."""
        if self.waiting_since is not None:
            self._end_wait(record.at_ns, loads)
        self.preemptions += 1
        self.lost_until = max(self.lost_until or 0, record.tokens_lost)
        self.gap_preempted = record.reason
        self.waiting_since = record.at_ns
        self.waiting_kind = REQUEUE

    def give_way(self, shape: StepTime) -> None:
        """It lost its place while the step ``shape`` was planned, in which it takes no part."""
        if self.waiting_since is not None and shape.start_ns < shape.planned_ns:
            self.pending.append((shape, GAVE_WAY))

    def compute_again(self, start: int, length: int) -> None:
        """A grant recomputes from ``start`` on; what of it lies beyond what was lost is computed for the first time."""
        end = start + length
        again = end if self.lost_until is None else min(end, self.lost_until)
        self.recomputed += max(0, again - start)
        self.prefilled += max(0, min(end, self.arrived.prompt_tokens) - max(start, again))

    def wait_for(self, kind: str, at_ns: Ns, loads: Sequence[Segment]) -> None:
        """From ``at_ns`` on the request waits for ``kind``: handoff, a reservation, or a place to decode.

        What is accounted up to a later time stays so.
        """
        if self.waiting_since is not None:
            self._end_wait(at_ns, loads)
        self.gap_handoff = True
        self.waiting_since = at_ns
        self.waiting_kind = kind

    def lose(self, at_ns: Ns, loads: Sequence[Segment]) -> None:
        """Its instance died with what it had computed: it has waited since its last step came back, and waits on."""
        since = max(self.cursor, self.pending_end) if self.waiting_since is None else at_ns
        if self.waiting_since is not None:
            self._end_wait(at_ns, loads)
        self.gap_lost = True
        self.waiting_since = min(since, at_ns)
        self.waiting_kind = REQUEUE

    def emit(self, at_ns: Ns, tokens: int = 1) -> Ns | None:
        """Tokens are available; returns the wait since the last one before, None for the first."""
        self.tokens += tokens
        self.chunks += 1
        before, self.last_token = self.last_token, at_ns
        if before is None:
            self.first_token = at_ns
            self.segments_at_first = self._segments_until(at_ns)
            self._new_gap()
            return None
        return at_ns - before

    def end_gap(self, wait: Ns, tokens: int = 1) -> str:
        """Cause of the wait that `emit` returned, which ended with ``tokens`` tokens; begins the next one."""
        cause = self._cause(wait)
        if self.first_gap is None:
            self.first_gap = even_gaps(wait, tokens)[0]
        if self.longest_gap is None or wait > self.longest_gap:
            self.longest_gap, self.longest_index, self.cause = wait, self.tokens - tokens, cause
        self._new_gap()
        return cause

    def decoded_along(self, now: Reading, last_ns: Ns, longest: tuple[Ns, int, str]) -> None:
        """The request got a token in each step from the reading at which it came along to ``now``, up to ``last_ns``.

        ``longest`` is the longest of the gaps, its place among them, and its cause. From here on it decodes alone.
        """
        since, self.along = self.along, None
        assert since is not None
        steps = now.steps - since.steps
        gap, place, cause = longest
        if self.longest_gap is None or gap > self.longest_gap:
            self.longest_gap, self.longest_index, self.cause = gap, self.tokens + place, cause
        self.tokens += steps
        self.steps += steps
        self.work += now.work - since.work
        theirs = zip(self.segments, now.segments, since.segments, strict=True)
        self.segments = [mine + after - before for mine, after, before in theirs]
        self.last_token = self.cursor = self.pending_end = last_ns
        self._new_gap()

    def finish(self, at_ns: Ns, loads: Sequence[Segment]) -> None:
        """Account up to ``at_ns``: the last token of a finished request, else the end of its wait."""
        if self.waiting_since is not None:
            self._end_wait(at_ns, loads)
        if self.pending and self.pending_end > at_ns:
            self._sweep(self._pending_spans(), at_ns)
        else:
            self.settle()
        if self.cursor < at_ns:
            self.segments[_LOST] += at_ns - self.cursor
            self.cursor = at_ns

    def _cause(self, gap: Ns) -> str:
        if self.gap_lost:
            return CAUSE_DIED
        if self.gap_preempted:
            return f"{CAUSE_PREEMPTED}: {self.gap_preempted}"
        if self.gap_handoff:
            return CAUSE_HANDOFF
        if self.gap_paused:
            return CAUSE_PAUSED
        if self.gap_stalled:
            return f"{CAUSE_STALLED}: {self.gap_stalled}"
        if 2 * self.gap_host > gap:
            return CAUSE_HOST
        return CAUSE_PREFILL_AHEAD if self.gap_prefill else CAUSE_DECODE

    def _new_gap(self) -> None:
        self.gap_lost = self.gap_handoff = self.gap_paused = self.gap_prefill = False
        self.gap_preempted = self.gap_stalled = ""
        self.gap_host = 0

    def _end_wait(self, at_ns: Ns, loads: Sequence[Segment]) -> None:
        assert self.waiting_since is not None
        begin = min(max(self.waiting_since, self.cursor), at_ns)
        if self.pending or any(load.end_ns > begin and load.start_ns < at_ns for load in loads):
            spans = [*self._pending_spans(), Segment(self.waiting_kind, self.waiting_since, at_ns), *loads]
            self._sweep(spans, max(at_ns, self.pending_end))
        elif at_ns > self.cursor:
            self.segments[_LOST] += begin - self.cursor
            self.segments[RANK[self.waiting_kind]] += at_ns - begin
            self.cursor = at_ns
        self.waiting_since = None

    def settle(self) -> None:
        """Account all pending steps."""
        if self._follows:
            shape, role = self.pending.pop()
            self._add_whole(shape, role, self.segments)
            self.cursor = shape.end_ns
        elif self.pending:
            self._sweep(self._pending_spans(), self.pending_end)

    def _settle_until(self, at_ns: Ns) -> None:
        """Account up to ``at_ns``, before which no further step begins."""
        if at_ns <= self.cursor:
            return
        if len(self.pending) == 1:
            shape, role = self.pending[0]
            totals = shape.totals_between(role, self.cursor, at_ns)
        else:
            totals = total_by_rank(sweep(self._pending_spans(), self.cursor, at_ns))
        for rank, spent in totals:
            self.segments[rank] += spent
        self.cursor = at_ns
        self.pending = [(shape, role) for shape, role in self.pending if shape.end_ns > at_ns]

    @property
    def _follows(self) -> bool:
        """Whether one step is pending, and nothing of it is accounted for yet."""
        return len(self.pending) == 1 and self.pending[0][0].start_ns >= self.cursor

    def _add_whole(self, shape: StepTime, role: str, segments: list[Ns]) -> None:
        """Add a step that follows, and what nobody knows of between, to ``segments``."""
        segments[_LOST] += shape.start_ns - self.cursor
        for rank, spent in shape.totals(role):
            segments[rank] += spent

    def _segments_until(self, at_ns: Ns) -> list[Ns]:
        """What `segments` would be at ``at_ns``; pending steps stay pending, a later one may overlap them."""
        segments = list(self.segments)
        if self._follows and self.pending_end == at_ns:
            self._add_whole(*self.pending[0], segments)
            return segments
        for rank, spent in total_by_rank(sweep(self._pending_spans(), self.cursor, at_ns)):
            segments[rank] += spent
        return segments

    def _pending_spans(self) -> list[Segment]:
        return [span for shape, role in self.pending for span in shape.spans(role)]

    def _sweep(self, spans: list[Segment], end_ns: Ns) -> None:
        for rank, spent in total_by_rank(sweep(spans, self.cursor, end_ns)):
            self.segments[rank] += spent
        self.pending.clear()
        self.cursor = max(self.cursor, end_ns)
