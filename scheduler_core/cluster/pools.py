"""Which pool each instance of a cluster works for, and since when."""

from collections.abc import Collection, Sequence
from enum import StrEnum

from scheduler_core.types.cluster_records import PoolChanged
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns


class Pool(StrEnum):
    """What an instance does: ``mixed`` computes prompts and decodes, as every one does where pools are not apart.

    One that is ``leaving`` ends what it has and gets nothing new, to work for another pool once it is empty.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    LEAVING = "leaving"


class Pools:
    """The pool of each instance, by index. ``homes`` are those they belong to, and go back to when they were lent."""

    def __init__(self, homes: Sequence[Pool]) -> None:
        self.homes = list(homes)
        self._now = list(homes)
        self.records: list[Record] = []

    def __getitem__(self, member: int) -> Pool:
        return self._now[member]

    def of(self, *pools: Pool) -> tuple[int, ...]:
        """Instances that work for one of ``pools``, ascending."""
        return tuple(member for member, pool in enumerate(self._now) if pool in pools)

    def at_home(self, pool: Pool, members: Collection[int]) -> tuple[int, ...]:
        """Those of ``members`` that belong to ``pool``, lent ones included, ascending; not who is leaving it."""
        return tuple(
            member
            for member, home in enumerate(self.homes)
            if home is pool and member in members and self._now[member] is not Pool.LEAVING
        )

    def move(self, member: int, pool: Pool, reason: str, now_ns: Ns) -> None:
        """``member`` belongs to ``pool`` from now on."""
        self.homes[member] = pool
        self.change(member, pool, reason, now_ns)

    def change(self, member: int, pool: Pool, reason: str, now_ns: Ns) -> None:
        """``member`` works for ``pool`` from now on."""
        self._now[member] = pool
        self.records.append(PoolChanged(now_ns, member, pool.value, reason))
