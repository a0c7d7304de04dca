"""The critical path of one request: its sweep, cut wherever what it hides changes, and whether removing it would help.

The path's length is the elapsed time by construction: the sweep partitions arrival to last token.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scheduler_core.evidence.fold.handoffs import Passage, Wait
from scheduler_core.evidence.fold.sweep import GAVE_WAY, REQUEUE, Segment, StepTime, sweep
from scheduler_core.evidence.records.expand import expand
from scheduler_core.types.cluster_records import (
    Emitted,
    Handoff,
    Held,
    Landed,
    Lost,
    Migration,
    Parked,
    Revoked,
    TransferFailed,
    Transferred,
)
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.records import Arrived, Loaded, Paused, Preempted, Record, Step
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the path: what it was spent on, and what ran underneath without counting (``hidden``)."""

    kind: str
    start_ns: Ns
    end_ns: Ns
    hidden: tuple[str, ...]

    @property
    def length_ns(self) -> Ns:
        """Its share of elapsed time."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """All stretches from arrival to last token, and every interval of the request with its exposed part."""

    request: int
    stretches: tuple[Stretch, ...]
    spans: tuple[Segment, ...]

    @property
    def elapsed_ns(self) -> Ns:
        """Length of the path."""
        return sum(stretch.length_ns for stretch in self.stretches)

    def exposed_ns(self, kind: str) -> Ns:
        """Time of ``kind`` on the path; the rest of its intervals was hidden."""
        return sum(stretch.length_ns for stretch in self.stretches if stretch.kind == kind)

    def would_shorten_ns(self, kind: str) -> Ns:
        """By how much the request would be sooner if ``kind`` took no time: its stretches that hid nothing else.

        Where another interval of the request ran underneath, that one would take its place on the path (R12).
        """
        return sum(stretch.length_ns for stretch in self.stretches if stretch.kind == kind and not stretch.hidden)


def critical_path(records: Iterable[Record], request: int) -> CriticalPath:
    """The path of ``request``; `InputError` when the records know no such request or it emitted nothing."""
    found = PathSpans(request)
    for record in expand(records):
        found.take(record)
    path = found.path()
    if path is None:
        raise InputError([Problem("request", f"request {request} has no token in these records")])
    return path


class PathSpans:
    """Collects the intervals of one request, record by record in their order."""

    def __init__(self, request: int) -> None:
        self.request = request
        self._arrived: Ns | None = None
        self._last_token: Ns | None = None
        self._spans: list[Segment] = []
        self._waiting: tuple[str, Ns] | None = None
        self._passage: Passage | None = None
        self._stepped: Ns = 0

    def take(self, record: Record) -> None:
        """Take one record; those of other requests change nothing."""
        if isinstance(record, Step):
            self._step(record)
        elif isinstance(record, Loaded):
            self._spans.append(Segment(IntervalClass.MODEL_LOAD.value, record.start_ns, record.end_ns))
        elif getattr(record, "request", None) != self.request:
            return
        elif isinstance(record, Arrived):
            self._arrived = record.at_ns
            self._wait_for(IntervalClass.QUEUE.value, record.at_ns)
        elif isinstance(record, Preempted | Revoked):
            self._wait_for(REQUEUE, record.at_ns)
        elif isinstance(record, Paused):
            self._wait_for(IntervalClass.PAUSED.value, record.at_ns)
        elif isinstance(record, Lost):  # it has waited since its last step came back
            self._passage = None
            self._wait_for(REQUEUE, self._stepped if self._waiting is None else record.at_ns)
        else:
            self._move(record)

    def path(self) -> CriticalPath | None:
        """The path so far; None while the request has no token."""
        if self._arrived is None or self._last_token is None:
            return None
        spans = [span for span in self._spans if span.end_ns > span.start_ns]
        segments = sweep(spans, self._arrived, self._last_token)
        return CriticalPath(self.request, tuple(_stretches(segments, spans)), tuple(spans))

    def _move(self, record: Record) -> None:
        """The request is on its way to another instance."""
        if isinstance(record, Held):
            self._wait_for((IntervalClass.QUEUE if record.over else IntervalClass.RESERVE_WAIT).value, record.at_ns)
        elif isinstance(record, Parked):
            self._wait_for(IntervalClass.RESERVE_WAIT.value, record.at_ns)
        elif isinstance(record, Handoff | Migration):
            if record.action in ("transfer", "stopped"):
                self._passage = Passage(record.at_ns, record.at_ns)
                self._wait_for(IntervalClass.HANDOFF.value, record.at_ns)
            elif record.action == "recompute":
                self._wait_for(REQUEUE, record.at_ns)
        elif isinstance(record, Transferred) and self._passage is not None:
            self._waited(self._passage.moved(record))
        elif isinstance(record, Landed | TransferFailed | Emitted):
            self._arrive(record)

    def _arrive(self, record: Landed | TransferFailed | Emitted) -> None:
        if self._passage is not None:
            self._waited(self._passage.heard(record.at_ns))
        if isinstance(record, Emitted):
            self._last_token = record.at_ns
            return
        self._passage, landed = None, isinstance(record, Landed)
        self._wait_for((IntervalClass.DECODE_QUEUE if landed else IntervalClass.RESERVE_WAIT).value, record.at_ns)

    def _waited(self, wait: Wait) -> None:
        self._spans.append(Segment(IntervalClass.NETWORK_WAIT.value, *wait))

    def _wait_for(self, kind: str, at_ns: Ns) -> None:
        """One wait ends and another begins."""
        if self._waiting is not None:
            self._spans.append(Segment(*self._waiting, at_ns))
        self._waiting = (kind, at_ns)

    def _step(self, step: Step) -> None:
        row = next((row for row in step.grants if row[0] == self.request), None)
        if row is None and all(row[0] != self.request for row in step.stalled):
            if self._waiting is not None and self._waiting[1] == step.planned_ns:
                self._spans += StepTime(step.planned_ns, step.available_ns, step.lanes).spans(GAVE_WAY)
            return
        if self._waiting is not None:
            kind, since = self._waiting
            self._spans.append(Segment(kind, since, step.planned_ns))
            self._waiting = None
        phase, sampled = (row[4], row[5]) if row is not None else (IntervalClass.STALLED.value, 0)
        self._spans += StepTime(step.planned_ns, step.available_ns, step.lanes).spans(phase)
        self._stepped = step.available_ns
        if sampled:
            self._last_token = step.available_ns


def _stretches(segments: Iterable[Segment], spans: Iterable[Segment]) -> Iterator[Stretch]:
    """Each segment of the sweep, cut wherever what runs underneath begins or ends."""
    edges = sorted(edge for span in spans for edge in ((span.start_ns, span.kind, 1), (span.end_ns, span.kind, -1)))
    place, under = 0, Counter[str]()
    for segment in segments:
        since, hidden = segment.start_ns, None
        at = segment.start_ns
        while at < segment.end_ns:
            while place < len(edges) and edges[place][0] <= at:
                under[edges[place][1]] += edges[place][2]
                place += 1
            now = tuple(sorted(kind for kind, running in under.items() if running and kind != segment.kind))
            if hidden is not None and now != hidden:
                yield Stretch(segment.kind, since, at, hidden)
                since = at
            hidden = now
            at = edges[place][0] if place < len(edges) else segment.end_ns
        if hidden is not None:
            yield Stretch(segment.kind, since, segment.end_ns, hidden)
