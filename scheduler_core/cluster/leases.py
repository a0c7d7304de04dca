"""Blocks that nobody needs any more, but that a transfer may still read or write: held for a while (PD-07, V-34).

::

    given up with bytes under way ── all reported, also late ── free at both sides
                                  └─ no word in time ────────── free at both sides; what is reported later is ignored

Without leases a link that is told to stop moves nothing more, which no network does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_core.cluster.links import Links, Moved
from scheduler_core.cluster.transfer import Transfer
from scheduler_core.sched.instance import Instance
from scheduler_core.types.cluster_records import Leased, LeaseEnded
from scheduler_core.types.records import Record
from scheduler_core.types.time import NEVER, Ns


@dataclass(slots=True, eq=False)
class Lease:
    """What a given-up transfer may still touch. ``pieces`` of it are on the link; ``reported_ns`` is when it is told
    that all have moved, ``until_ns`` when it is not waited for any longer."""

    request: int
    source: int
    destination: int
    fence: int
    until_ns: Ns
    pieces: int
    delay_ns: Ns
    reported_ns: Ns = NEVER


@dataclass
class Leases:
    """All leases. Each stands for a fence in the pools of both sides."""

    instances: Sequence[Instance]
    links: Links
    lease_ns: Ns
    records: list[Record] = field(default_factory=list)
    _open: dict[int, Lease] = field(default_factory=dict)
    _count: int = 0

    def hold(self, transfer: Transfer, delay_ns: Ns, now_ns: Ns, *, unheard: bool) -> None:
        """Pin what ``transfer`` may still touch, before both sides give it up; nothing if its bytes have all landed.

        Its last piece is reported ``delay_ns`` late; with ``unheard`` nothing of it ever is.
        """
        if not transfer.under_way and transfer.reported_ns is None:
            return
        self._count += 1
        fence = -self._count  # those of steps are their numbers
        lease = Lease(
            transfer.request, transfer.source, transfer.destination, fence, now_ns + self.lease_ns, 0, delay_ns
        )
        lease.pieces = self.links.between(transfer.source, transfer.destination).hand_on(transfer, lease)
        if not lease.pieces and not unheard:
            lease.reported_ns = transfer.reported_ns or now_ns
        if lease.reported_ns <= now_ns:
            return
        self._open[fence] = lease
        blocks = [self.instances[member].pin(transfer.request, fence) for member in _sides(lease)]
        self.records.append(Leased(now_ns, transfer.request, transfer.source, transfer.destination, *blocks))

    def silence(self, member: int, now_ns: Ns) -> None:
        """``member`` died: nothing from or to it will be reported any more."""
        for lease in self._open.values():
            if member in _sides(lease):
                self.links.between(lease.source, lease.destination).stop(lease, now_ns)
                lease.reported_ns = NEVER

    def settle(self, landed: Sequence[Moved], now_ns: Ns) -> list[int]:
        """End what was reported or is over; the instances that have room again."""
        for moved in landed:
            if isinstance(moved.flow, Lease):
                moved.flow.pieces -= 1
                if not moved.flow.pieces:
                    moved.flow.reported_ns = now_ns + moved.flow.delay_ns
        over = [lease for lease in self._open.values() if min(lease.reported_ns, lease.until_ns) <= now_ns]
        for lease in over:
            del self._open[lease.fence]
            self.links.between(lease.source, lease.destination).stop(lease, now_ns)
            for member in _sides(lease):
                self.instances[member].unpin(lease.fence)
            how = "reported" if lease.reported_ns <= now_ns else "expired"
            self.records.append(LeaseEnded(now_ns, lease.request, lease.source, lease.destination, how))
        return [member for lease in over for member in _sides(lease)]

    def next_ns(self) -> Ns:
        """When the next one ends by time alone; `NEVER` when there is none."""
        return min((min(lease.reported_ns, lease.until_ns) for lease in self._open.values()), default=NEVER)


def _sides(lease: Lease) -> tuple[int, int]:
    return lease.source, lease.destination
