"""What moved between instances, how long it took, and what was hidden behind the computing of the same request."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from scheduler_core.evidence.fold.sweep import union_ns
from scheduler_core.types.cluster_records import (
    Emitted,
    Handoff,
    Landed,
    Leased,
    LeaseEnded,
    Migration,
    Parked,
    PrefixMoved,
    Reassigned,
    TransferFailed,
    Transferred,
)
from scheduler_core.types.time import Ns

Wait: TypeAlias = tuple[Ns, Ns]
"""From, to."""


@dataclass
class MigrationTotals:
    """Sums over live migrations: ``span_ns`` from the first copy to the landing, ``stopped_ns`` the end of it in which
    the request did not decode. ``bytes`` are also those of migrations that were dropped.
    """

    started: int = 0
    landed: int = 0
    span_ns: Ns = 0
    stopped_ns: Ns = 0
    stages: int = 0
    bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    _began: dict[int, Ns] = field(default_factory=dict)
    _stopped: dict[int, Ns] = field(default_factory=dict)
    _landed: set[int] = field(default_factory=set)

    def take(self, record: Migration) -> None:
        """A migration went on."""
        request, action = record.request, record.action
        if action == "started":
            self.started += 1
            self._began[request] = record.at_ns
        elif action == "stopped":
            self._stopped[request] = record.at_ns
        elif action in ("landed", "dropped"):
            began, stopped = self._began.pop(request), self._stopped.pop(request, record.at_ns)
            if action == "dropped":
                self.dropped[record.reason] += 1
                return
            self.landed += 1
            self.stages += record.stage
            self.span_ns += record.at_ns - began
            self.stopped_ns += record.at_ns - stopped
            self._landed.add(request)

    def under_way(self, request: int) -> bool:
        """Whether ``request`` is being migrated."""
        return request in self._began

    def over(self, record: Landed) -> bool:
        """Whether a landing is the end of a migration, and not of a handoff."""
        mine = record.request in self._landed
        self._landed.discard(record.request)
        return mine


@dataclass(slots=True)
class Passage:
    """A request whose bytes are awaited: what of that is waiting for the link, or for word of what has moved.

    ``since_ns`` is when its transfer was decided, or its migration stopped it; ``last_ns`` when last it was heard of.
    """

    since_ns: Ns
    last_ns: Ns

    def moved(self, record: Transferred) -> Wait:
        """Bytes of it moved; when they waited for the link."""
        self.last_ns = record.at_ns
        return max(self.since_ns, record.start_ns), record.moves_ns

    def heard(self, at_ns: Ns) -> Wait:
        """It has landed or failed, or its token is told; since when nothing but word of that was awaited."""
        since, self.last_ns = self.last_ns, at_ns
        return since, at_ns


@dataclass
class HandoffTotals:
    """Sums over the handoffs of a run. A request's handoff spans from its parking to its landing elsewhere.

    ``network_wait_ns`` is the part of that in which the bytes waited: for a link that moved others', or for word that
    they had all moved. What takes a record gives the wait that ends with it, None where there is none.
    ``leases`` were held for transfers given up, of which ``leases_expired`` without word of their bytes.
    ``reassigned_count`` requests that waited were taken to another instance, ``reassigned_ns`` on their way in sum.
    For ``fetched`` requests the beginning of their prompt came from another instance, in ``fetched_ns`` in sum.
    """

    decided: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    landed: int = 0
    span_ns: Ns = 0
    bytes: int = 0
    communication_ns: Ns = 0
    exposed_ns: Ns = 0
    network_wait_ns: Ns = 0
    migrations: MigrationTotals = field(default_factory=MigrationTotals)
    reassigned_count: int = 0
    reassigned_ns: Ns = 0
    fetched: int = 0
    fetched_ns: Ns = 0
    fetched_bytes: int = 0
    leases: int = 0
    leases_expired: int = 0
    _left: dict[int, Ns] = field(default_factory=dict)
    _parked: dict[int, Ns] = field(default_factory=dict)
    _pieces: dict[int, list[Wait]] = field(default_factory=dict)
    _passages: dict[int, Passage] = field(default_factory=dict)
    _waits: dict[int, list[Wait]] = field(default_factory=dict)

    def parked(self, record: Parked) -> None:
        """A request is ready to go."""
        self._parked[record.request] = record.at_ns

    def handoff(self, record: Handoff) -> None:
        """Something was decided about it."""
        self.decided[record.action] += 1
        if record.reason:
            self.fallbacks[record.reason] += 1
        if record.action == "transfer":
            self._passages[record.request] = Passage(record.at_ns, record.at_ns)

    def migrated(self, record: Migration) -> None:
        """A migration went on; once its request has stopped, its bytes are awaited."""
        self.migrations.take(record)
        if record.action == "stopped":
            self._passages[record.request] = Passage(record.at_ns, record.at_ns)

    def reassigned(self, record: Reassigned) -> None:
        """A request that waits leaves an instance, or arrives at another (or is back)."""
        if record.action == "leaves":
            self._left[record.request] = record.at_ns
            return
        left_ns = self._left.pop(record.request)
        if record.action == "arrives":
            self.reassigned_count += 1
            self.reassigned_ns += record.at_ns - left_ns

    def prefix_moved(self, record: PrefixMoved) -> None:
        """The beginning of a prompt is fetched, or there, or lost."""
        if record.action == "leaves":
            self._left[record.request] = record.at_ns
            return
        left_ns = self._left.pop(record.request)
        if record.action == "arrives":
            self.fetched += 1
            self.fetched_ns += record.at_ns - left_ns
            self.fetched_bytes += record.bytes

    def leased(self, record: Leased) -> None:
        """Blocks are held for a transfer that was given up."""
        self.leases += 1

    def lease_ended(self, record: LeaseEnded) -> None:
        """They are free again."""
        self.leases_expired += record.how == "expired"

    def transferred(self, record: Transferred) -> Wait | None:
        """Bytes of it moved."""
        self.bytes += record.bytes
        self.migrations.bytes += record.bytes * self.migrations.under_way(record.request)
        self._pieces.setdefault(record.request, []).append((record.moves_ns, record.at_ns))
        passage = self._passages.get(record.request)
        return None if passage is None else self._note(record.request, passage.moved(record))

    def transfer_failed(self, record: TransferFailed) -> Wait | None:
        """They moved in vain."""
        self.failed += 1
        return self._end(record.request, record.at_ns)

    def emitted(self, record: Emitted) -> Wait | None:
        """Its first token was told."""
        passage = self._passages.get(record.request)
        return None if passage is None else self._note(record.request, passage.heard(record.at_ns))

    def arrived(self, record: Landed) -> Wait | None:
        """It is where it decodes."""
        wait = self._end(record.request, record.at_ns)
        ready = self._parked.pop(record.request, record.at_ns)
        pieces, waits = self._pieces.pop(record.request, []), self._waits.pop(record.request, [])
        if record.stayed or self.migrations.over(record):
            return wait
        self.landed += 1
        self.span_ns += record.at_ns - ready
        self.communication_ns += union_ns(pieces)
        self.exposed_ns += union_ns((max(start, ready), end) for start, end in pieces if end > ready)
        self.network_wait_ns += union_ns(waits)
        return wait

    def forget(self, request: int) -> None:
        """It is over."""
        for of_requests in (self._left, self._parked, self._pieces, self._passages, self._waits):
            of_requests.pop(request, None)

    def _end(self, request: int, at_ns: Ns) -> Wait | None:
        passage = self._passages.pop(request, None)
        return None if passage is None else self._note(request, passage.heard(at_ns))

    def _note(self, request: int, wait: Wait) -> Wait | None:
        if wait[1] <= wait[0]:
            return None
        self._waits.setdefault(request, []).append(wait)
        return wait
