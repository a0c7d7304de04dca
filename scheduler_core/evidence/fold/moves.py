"""The part of the fold that follows requests from instance to instance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler_core.evidence.fold.handoffs import HandoffTotals, Wait
from scheduler_core.evidence.fold.instances import Idleness, OutageTotals
from scheduler_core.evidence.fold.sweep import REQUEUE, Segment
from scheduler_core.evidence.fold.timeline import Timeline
from scheduler_core.types.cluster_records import (
    Emitted,
    Handoff,
    Held,
    Landed,
    Lost,
    Migration,
    Parked,
    PrefixMoved,
    Reassigned,
    Revoked,
    Routed,
    TransferFailed,
    Transferred,
)
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.time import Ns

_QUEUE = IntervalClass.QUEUE.value
_RESERVE_WAIT = IntervalClass.RESERVE_WAIT.value
_HANDOFF = IntervalClass.HANDOFF.value
_NETWORK_WAIT = IntervalClass.NETWORK_WAIT.value
_DECODE_QUEUE = IntervalClass.DECODE_QUEUE.value


@dataclass
class MovesFold:
    """Works on the fold's own requests, instances and model loads.

    ``line`` finds an open request with its account up to date, ``token`` accounts for a token that one got.
    """

    line: Callable[[int], Timeline | None]
    instances: Mapping[int, Idleness]
    loads: list[Segment]
    token: Callable[[int, Timeline, Ns], None]
    handoffs: HandoffTotals = field(default_factory=HandoffTotals)
    outages: OutageTotals = field(default_factory=OutageTotals)

    def takers(self) -> dict[type[Any], Any]:
        """By kind of record, what takes it."""
        return {
            Routed: self._routed,
            Held: self._held,
            Parked: self._parked,
            Emitted: self._emitted,
            Handoff: self._handoff,
            Transferred: self._transferred,
            TransferFailed: self._transfer_failed,
            Landed: self._landed,
            Migration: self._migration,
            Revoked: self._revoked,
            Lost: self._lost,
            Reassigned: self._reassigned,
            PrefixMoved: self._prefix_moved,
        }

    def move(self, line: Timeline, instance: int, at_ns: Ns) -> None:
        """A request is in another instance from ``at_ns`` on."""
        self.instances[line.instance].leave()
        line.instance = instance
        self.instances[instance].enter(at_ns)

    def _routed(self, record: Routed) -> None:
        line = self.line(record.request)
        if line is not None:
            self.move(line, record.instance, record.at_ns)

    def _parked(self, record: Parked) -> None:
        self.handoffs.parked(record)
        line = self.line(record.request)
        if line is not None:
            self.instances[line.instance].resident -= line.waiting_since is None
            line.wait_for(_RESERVE_WAIT, record.at_ns, self.loads)

    def _held(self, record: Held) -> None:
        line = self.line(record.request)
        if line is not None:
            line.wait_for(_QUEUE if record.over else _RESERVE_WAIT, record.at_ns, self.loads)

    def _emitted(self, record: Emitted) -> None:
        wait = self.handoffs.emitted(record)
        line = self.line(record.request)
        if line is not None:
            self._waited(line, wait)
            line.wait_for(line.waiting_kind, record.at_ns, self.loads)
            self.token(record.request, line, record.at_ns)

    def _handoff(self, record: Handoff) -> None:
        self.handoffs.handoff(record)
        line = self.line(record.request)
        if line is None:
            return
        if record.action == "transfer":
            line.wait_for(_HANDOFF, record.at_ns, self.loads)
        elif record.action == "recompute":
            line.wait_for(REQUEUE, record.at_ns, self.loads)
            self.move(line, record.destination, record.at_ns)

    def _migration(self, record: Migration) -> None:
        self.handoffs.migrated(record)
        line = self.line(record.request)
        if line is not None and record.action == "stopped":
            line.wait_for(_HANDOFF, record.at_ns, self.loads)

    def _transfer_failed(self, record: TransferFailed) -> None:
        wait = self.handoffs.transfer_failed(record)
        line = self.line(record.request)
        if line is not None:
            self._waited(line, wait)
            line.wait_for(_RESERVE_WAIT, record.at_ns, self.loads)

    def _landed(self, record: Landed) -> None:
        wait = self.handoffs.arrived(record)
        line = self.line(record.request)
        if line is not None:
            self._waited(line, wait)
            line.wait_for(_DECODE_QUEUE, record.at_ns, self.loads)
            self.move(line, record.instance, record.at_ns)

    def _transferred(self, record: Transferred) -> None:
        wait = self.handoffs.transferred(record)
        line = self.line(record.request)
        if line is not None:
            self._waited(line, wait)

    def _waited(self, line: Timeline, wait: Wait | None) -> None:
        """Part of the handoff that a request is in was spent waiting for the network."""
        if wait is not None:
            line.wait_for(_NETWORK_WAIT, wait[0], self.loads)
            line.wait_for(_HANDOFF, wait[1], self.loads)

    def _revoked(self, record: Revoked) -> None:
        line = self.line(record.request)
        if line is not None:
            line.wait_for(REQUEUE, record.at_ns, self.loads)
            line.preemptions += 1

    def _reassigned(self, record: Reassigned) -> None:
        self.handoffs.reassigned(record)
        line = self.line(record.request)
        if line is None:
            return
        if record.action == "leaves":
            line.wait_for(_HANDOFF, record.at_ns, self.loads)
            return
        line.wait_for(_QUEUE, record.at_ns, self.loads)
        if record.action == "arrives":
            self.move(line, record.destination, record.at_ns)

    def _prefix_moved(self, record: PrefixMoved) -> None:
        self.handoffs.prefix_moved(record)
        line = self.line(record.request)
        if line is not None:
            line.wait_for(_HANDOFF if record.action == "leaves" else _QUEUE, record.at_ns, self.loads)

    def _lost(self, record: Lost) -> None:
        self.outages.take_lost(record)
        self.handoffs.forget(record.request)
        line = self.line(record.request)
        if line is not None:
            self.instances[line.instance].resident -= line.waiting_since is None
            line.lose(record.at_ns, self.loads)
