"""The sweep: a request's time from arrival to last token, cut into exclusive segments.

At each instant the highest class present wins (`PRECEDENCE`); what nothing covers is `UNATTRIBUTED`. So segments
always add up to the elapsed time, and a record that lies shows as unattributed time instead of vanishing in a sum.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scheduler_core.types.intervals import COMPUTE, DEVICE_KINDS, IntervalClass
from scheduler_core.types.plan import Phase
from scheduler_core.types.time import NS_PER_MS, Ns

REQUEUE = "requeue"
SEND_DELAY = "send_delay"
UNATTRIBUTED = "unattributed"

# Own compute above all, waiting below all; ``requeue`` is the queue after a preemption, kept under its own name. The
# host's book-keeping between steps comes last: it counts only where nothing else is known of a request.
PRECEDENCE: tuple[str, ...] = (
    IntervalClass.COMPUTE_PREFILL,
    IntervalClass.COMPUTE_DECODE,
    IntervalClass.RECOMPUTE,
    IntervalClass.SWAP,
    IntervalClass.COMMUNICATION,
    IntervalClass.SYNC_WAIT,
    IntervalClass.NETWORK_WAIT,
    IntervalClass.HANDOFF,
    IntervalClass.INPUT_TRANSFER,
    IntervalClass.INPUT_PREPARE,
    IntervalClass.OUTPUT_TRANSFER,
    IntervalClass.STREAM_OUTPUT,
    IntervalClass.MODEL_LOAD,
    IntervalClass.RESERVE_WAIT,
    IntervalClass.DECODE_QUEUE,
    IntervalClass.PAUSED,
    IntervalClass.STALLED,
    IntervalClass.QUEUE,
    REQUEUE,
    SEND_DELAY,
    IntervalClass.HOST_GAP,
)
SEGMENTS: tuple[str, ...] = (*PRECEDENCE, UNATTRIBUTED)
RANK: dict[str, int] = {str(name): rank for rank, name in enumerate(SEGMENTS)}

PHASE_CLASS: dict[str, str] = {
    Phase.PREFILL.value: IntervalClass.COMPUTE_PREFILL.value,
    Phase.DECODE.value: IntervalClass.COMPUTE_DECODE.value,
    Phase.RECOMPUTE.value: IntervalClass.RECOMPUTE.value,
}


GAVE_WAY = "gave_way"
"""The part in a step of who lost its place while it was planned: until then the host was busy for it too."""

_NO_WORK = (IntervalClass.HOST_GAP, IntervalClass.STALLED, IntervalClass.SYNC_WAIT)
_DECODE = Phase.DECODE.value
_COMPUTE_DECODE = RANK[IntervalClass.COMPUTE_DECODE]

Lanes = Sequence[tuple[str, str, Ns, Ns]]
"""Rows (kind, resource, start, end) of what a step spent its time on."""


class Segment(NamedTuple):
    """``[start_ns, end_ns)`` was spent on ``kind``, one of `SEGMENTS`."""

    kind: str
    start_ns: Ns
    end_ns: Ns


def sweep(spans: Iterable[Segment], start_ns: Ns, end_ns: Ns) -> list[Segment]:
    """Partition ``[start_ns, end_ns)``: adjacent segments of differing kinds, ordered, gapless.

    Spans are clipped to the range; spans that end before they start and kinds outside `PRECEDENCE` cover nothing.
    """
    events: list[tuple[Ns, int, int]] = []
    for kind, begin, end in spans:
        low, high = max(begin, start_ns), min(end, end_ns)
        rank = RANK.get(kind)
        if high > low and rank is not None:
            events += ((low, rank, 1), (high, rank, -1))
    events.sort()
    events.append((end_ns, 0, 0))
    present = [0] * len(SEGMENTS)
    segments: list[Segment] = []
    at = start_ns
    for time, rank, change in events:
        if time > at:
            kind = next((name for name, count in zip(SEGMENTS, present, strict=True) if count), UNATTRIBUTED)
            if segments and segments[-1].kind == kind:
                segments[-1] = Segment(kind, segments[-1].start_ns, time)
            else:
                segments.append(Segment(str(kind), at, time))
            at = time
        present[rank] += change
    return segments


def unattributed_bound_ns(e2e_ns: Ns, *, modelled: bool) -> Ns:
    """Most time that may stay unattributed: nothing on a modelled target, else 1 ms or 1 % of E2E."""
    return 0 if modelled else max(NS_PER_MS, e2e_ns // 100)


class StepTime:
    """What one step means for the time of a request that took part in it, computed once for all of them.

    Participants own the step's compute (as their phase) and its transfer lanes; host planning before the compute is
    their ``input_prepare``, up to where the executor says that the step waited for a resource (a lane ``stalled``).
    Residents that were granted nothing are ``stalled`` for the whole span. The host's book-keeping before the planning
    is everybody's ``host_gap``; a wait for admission ends only at ``planned_ns``.

    ``work_ns`` is what the step's own lanes take together: its elapsed time if nothing lay over anything. Devices that
    communicate or wait for each other compute nothing, but are not idle: ``compute_start_ns`` and ``compute_end_ns``
    have that in them, ``compute_ns`` has not.
    """

    __slots__ = (
        "_between",
        "_lanes",
        "_prepared_ns",
        "_serial",
        "_totals",
        "compute_end_ns",
        "compute_ns",
        "compute_start_ns",
        "end_ns",
        "planned_ns",
        "start_ns",
        "work_ns",
    )

    def __init__(self, planned_ns: Ns, available_ns: Ns, lanes: Lanes, *, spread: bool = False) -> None:
        self.planned_ns = planned_ns
        self.start_ns = min([planned_ns, *(start for kind, _, start, _ in lanes if kind == IntervalClass.HOST_GAP)])
        self.end_ns = available_ns
        self._lanes = lanes
        compute = [(start, end) for kind, _, start, end in lanes if kind == COMPUTE]
        self.compute_start_ns = min((start for start, _ in compute), default=planned_ns)
        held = DEVICE_KINDS if spread else (COMPUTE,)
        ends = [end for kind, _, _, end in lanes if kind in held]
        self.compute_end_ns = max(ends, default=self.compute_start_ns)
        self.compute_ns = union_ns(compute)
        self.work_ns = sum(end - start for kind, _, start, end in lanes if kind not in _NO_WORK)
        waits = (start for kind, _, start, _ in lanes if kind == IntervalClass.STALLED)
        self._prepared_ns = min([self.compute_start_ns, *waits])
        self._serial = _one_after_the_other(lanes, self.start_ns, available_ns)
        self._totals: dict[str, list[tuple[int, Ns]]] = {}
        self._between: dict[tuple[str, Ns, Ns], list[tuple[int, Ns]]] = {}

    def spans(self, role: str) -> list[Segment]:
        """Spans for a participant of phase ``role``, for a stalled resident (``stalled``), or for who gave way."""
        between = Segment(IntervalClass.HOST_GAP.value, self.start_ns, self.planned_ns)
        if role == GAVE_WAY:
            return [between]
        if role == IntervalClass.STALLED:
            return [Segment(IntervalClass.STALLED.value, self.planned_ns, self.end_ns), between]
        own = PHASE_CLASS[role]
        spans = [Segment(IntervalClass.INPUT_PREPARE.value, self.planned_ns, self._prepared_ns)]
        spans += [Segment(own if kind == COMPUTE else kind, start, end) for kind, _, start, end in self._lanes]
        return spans

    def totals(self, role: str) -> list[tuple[int, Ns]]:
        """(rank, ns) of the sweep over the step's span for ``role``; it adds up to the span."""
        found = self._totals.get(role)
        if found is None:
            if self._serial and role != IntervalClass.STALLED:
                own = PHASE_CLASS[role]
                lanes = [Segment(own if kind == COMPUTE else kind, start, end) for kind, _, start, end in self._lanes]
                found = total_by_rank(lanes)
            else:
                found = total_by_rank(sweep(self.spans(role), self.start_ns, self.end_ns))
            self._totals[role] = found
        return found

    def again(self, planned_ns: Ns, available_ns: Ns) -> "StepTime":
        """A step of the same parts one after the other, of which only the compute takes more or less time.

        It knows what is the same for all who decode in it, and what became of no other.
        """
        again = StepTime.__new__(StepTime)
        more = available_ns - planned_ns - (self.end_ns - self.planned_ns)
        again.planned_ns = again.start_ns = planned_ns
        again.end_ns = available_ns
        again.compute_start_ns = planned_ns + self.compute_start_ns - self.planned_ns
        again.compute_ns = self.compute_ns + more
        again.compute_end_ns = again.compute_start_ns + again.compute_ns
        again.work_ns = self.work_ns + more
        again._lanes = ()
        again._serial = False
        again._prepared_ns = again.compute_start_ns
        totals = [(rank, spent + more if rank == _COMPUTE_DECODE else spent) for rank, spent in self.totals(_DECODE)]
        again._totals, again._between = {_DECODE: totals}, {}
        return again

    def totals_between(self, role: str, start_ns: Ns, end_ns: Ns) -> list[tuple[int, Ns]]:
        """As `totals`, over ``[start_ns, end_ns)``."""
        key = role, start_ns, end_ns
        found = self._between.get(key)
        if found is None:
            found = self._between[key] = total_by_rank(sweep(self.spans(role), start_ns, end_ns))
        return found


def _one_after_the_other(lanes: Lanes, start_ns: Ns, end_ns: Ns) -> bool:
    """Whether lanes fill ``[start_ns, end_ns)`` in their order, none beside another."""
    for _, _, start, end in lanes:
        if start != start_ns:
            return False
        start_ns = end
    return start_ns == end_ns


def total_by_rank(segments: Sequence[Segment]) -> list[tuple[int, Ns]]:
    """(rank, ns) summed over segments of each kind."""
    sums: dict[int, Ns] = {}
    for kind, start, end in segments:
        sums[RANK[kind]] = sums.get(RANK[kind], 0) + end - start
    return list(sums.items())


def union_ns(spans: Iterable[tuple[Ns, Ns]]) -> Ns:
    """Length of the union of ``[start, end)`` spans."""
    total = 0
    reached: Ns | None = None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            total += max(0, end - start)
            reached = max(start, end)
        elif end > reached:
            total += end - reached
            reached = end
    return total
