"""What moves between the instances of a cluster, for live samples: requests on their way, bytes, and who is on."""

from collections import deque
from collections.abc import Sequence

from scheduler_core.evidence.fold.instances import PowerTotals
from scheduler_core.types.cluster_records import (
    Handoff,
    Landed,
    Lost,
    OutageStage,
    Parked,
    PoolChanged,
    PrefixMoved,
    Reassigned,
    Scaled,
    Transferred,
)
from scheduler_core.types.records import Finished, Record
from scheduler_core.types.time import Ns

_AWAY = ("off", "starting")


class LiveMoves:
    """Takes records in order; ``on_the_way`` are requests between two instances, ``fallbacks`` handoffs that were not
    done as first chosen, ``changes`` starts, drains and moves of instances."""

    def __init__(self) -> None:
        self.fallbacks = self.changes = 0
        self._on_the_way: set[int] = set()
        self._bytes: deque[tuple[Ns, Ns, int]] = deque()
        self._away: set[int] = set()
        self._dead: set[int] = set()
        self._power = PowerTotals()

    def take(self, record: Record) -> None:
        """Fold one record; those that say nothing of moves change nothing."""
        if isinstance(record, Parked):
            self._on_the_way.add(record.request)
        elif isinstance(record, Reassigned | PrefixMoved):
            (self._on_the_way.add if record.action == "leaves" else self._on_the_way.discard)(record.request)
        elif isinstance(record, Landed | Finished | Lost):
            self._on_the_way.discard(record.request)
        elif isinstance(record, Handoff):
            self.fallbacks += bool(record.reason)
            if record.action == "recompute":
                self._on_the_way.discard(record.request)
        elif isinstance(record, Transferred):
            self._bytes.append((record.start_ns, record.at_ns, record.bytes))
        elif isinstance(record, Scaled):
            self.changes += record.power in ("starting", "draining")
            self._power.take(record)
            (self._away.add if record.power in _AWAY else self._away.discard)(record.instance)
        elif isinstance(record, PoolChanged):
            self.changes += record.pool in ("mixed", "leaving")
        elif isinstance(record, OutageStage):
            if record.what == "died":
                self._dead.add(record.instance)
            elif record.what == "back":
                self._dead.discard(record.instance)

    @property
    def on_the_way(self) -> int:
        """Requests between two instances now."""
        return len(self._on_the_way)

    def bytes_since(self, begin: Ns) -> float:
        """Bytes that moved from ``begin`` on of what has landed, each at an even pace from its start to its landing.

        What landed before is forgotten.
        """
        while self._bytes and self._bytes[0][1] <= begin:
            self._bytes.popleft()
        return sum(size * (end - max(start, begin)) / max(1, end - start) for start, end, size in self._bytes)

    def held_ns(self, instance: int, start_ns: Ns, end_ns: Ns) -> Ns:
        """How long an instance was held within ``[start_ns, end_ns)``."""
        return self._power.held_ns(instance, start_ns, end_ns)

    def on(self, members: Sequence[int]) -> int:
        """How many of ``members`` are neither off, nor starting, nor dead."""
        return sum(member not in self._away and member not in self._dead for member in members)
