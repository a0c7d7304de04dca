"""What moved between instances, how long it took, and what was hidden behind the computing of the same request."""

from collections import Counter
from dataclasses import dataclass, field

from scheduler_core.evidence.sweep import union_ns
from scheduler_core.types.cluster_records import Handoff, Landed, Parked, TransferFailed, Transferred
from scheduler_core.types.time import Ns


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
        self._pieces.setdefault(record.request, []).append((record.start_ns, record.at_ns))

    def transfer_failed(self, record: TransferFailed) -> None:
        """They moved in vain."""
        self.failed += 1

    def arrived(self, record: Landed) -> None:
        """It is where it decodes."""
        ready = self._parked.pop(record.request, record.at_ns)
        pieces = self._pieces.pop(record.request, [])
        if record.stayed:
            return
        self.landed += 1
        self.span_ns += record.at_ns - ready
        self.communication_ns += union_ns(pieces)
        self.exposed_ns += union_ns((max(start, ready), end) for start, end in pieces if end > ready)

    def forget(self, request: int) -> None:
        """It is over."""
        self._parked.pop(request, None)
        self._pieces.pop(request, None)
