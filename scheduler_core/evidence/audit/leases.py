"""The part of the audit that follows blocks held for transfers that were given up."""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scheduler_core.evidence.audit.moves import Check
from scheduler_core.types.cluster_records import Leased, LeaseEnded
from scheduler_core.types.records import RunStarted
from scheduler_core.types.time import Ns, ns_from_ms

_RULE = "leases end"


@dataclass
class LeasesAudit:
    """Holds leases by (request, source, destination), each since when: the oldest ends first, once, and in time.

    ``most_ns`` is how long the policy of the run lets one last; None where it does not say.
    """

    check: Check
    most_ns: Ns | None = None
    _held: defaultdict[tuple[int, int, int], deque[Ns]] = field(default_factory=lambda: defaultdict(deque))

    def takers(self) -> dict[type[Any], Callable[[Any], None]]:
        """What takes each kind of record."""
        return {Leased: self.leased, LeaseEnded: self.ended}

    def started(self, record: RunStarted) -> None:
        """The run began, with a policy that may bound leases."""
        lease_ms = (record.policy.get("pools") or {}).get("lease_ms")
        self.most_ns = None if lease_ms is None else ns_from_ms(lease_ms)

    def leased(self, record: Leased) -> None:
        """Blocks are held from now on."""
        self._held[record.request, record.source, record.destination].append(record.at_ns)

    def ended(self, record: LeaseEnded) -> None:
        """They are let go."""
        where, held = (
            f"lease of request {record.request}",
            self._held[record.request, record.source, record.destination],
        )
        began_ns = held.popleft() if held else None
        self.check(_RULE, began_ns is not None, where, "ended at {} ns, but none was held", record.at_ns)
        if began_ns is not None and self.most_ns is not None:
            took_ns = record.at_ns - began_ns
            fits = took_ns == self.most_ns if record.how == "expired" else took_ns <= self.most_ns
            self.check(_RULE, fits, where, "{} after {} ns of at most {}", record.how, took_ns, self.most_ns)
