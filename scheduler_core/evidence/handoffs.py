"""What moved between instances, how long it took, and what was hidden behind the computing of the same request."""

from collections import Counter
from dataclasses import dataclass, field

from scheduler_core.evidence.sweep import union_ns
from scheduler_core.types.cluster_records import Handoff, Landed, Migration, Parked, TransferFailed, Transferred
from scheduler_core.types.time import Ns


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


@dataclass
class HandoffTotals:
    """Sums over the handoffs of a run. A request's handoff spans from its parking to its landing elsewhere."""

    decided: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    landed: int = 0
    span_ns: Ns = 0
    bytes: int = 0
    communication_ns: Ns = 0
    exposed_ns: Ns = 0
    migrations: MigrationTotals = field(default_factory=MigrationTotals)
    _parked: dict[int, Ns] = field(default_factory=dict)
    _pieces: dict[int, list[tuple[Ns, Ns]]] = field(default_factory=dict)

    def parked(self, record: Parked) -> None:
        """A request is ready to go."""
        self._parked[record.request] = record.at_ns

    def handoff(self, record: Handoff) -> None:
        """Something was decided about it."""
        self.decided[record.action] += 1
        if record.reason:
            self.fallbacks[record.reason] += 1

    def transferred(self, record: Transferred) -> None:
        """Bytes of it moved."""
        self.bytes += record.bytes
        self.migrations.bytes += record.bytes * self.migrations.under_way(record.request)
        self._pieces.setdefault(record.request, []).append((record.start_ns, record.at_ns))

    def transfer_failed(self, record: TransferFailed) -> None:
        """They moved in vain."""
        self.failed += 1

    def arrived(self, record: Landed) -> None:
        """It is where it decodes."""
        ready = self._parked.pop(record.request, record.at_ns)
        pieces = self._pieces.pop(record.request, [])
        if record.stayed or self.migrations.over(record):
            return
        self.landed += 1
        self.span_ns += record.at_ns - ready
        self.communication_ns += union_ns(pieces)
        self.exposed_ns += union_ns((max(start, ready), end) for start, end in pieces if end > ready)

    def forget(self, request: int) -> None:
        """It is over."""
        self._parked.pop(request, None)
        self._pieces.pop(request, None)
