"""The account of KV blocks: every block is in exactly one place.

::

    clean-free   holds nothing anyone knows
    cached-free  nobody uses it, its content is indexed and may be hit again
    leased       in the table of one or more requests (the lease count)
    fenced       released, but an executor may still be writing or reading it

Law: clean + cached + leased + fenced = total, and the lease counts add up to the lengths of all tables.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import takewhile

from scheduler_core.kv.freelist import FreeList
from scheduler_core.kv.prefix import PrefixIndex
from scheduler_core.types.errors import CallerError, LawError


class Ledger:
    """Leases blocks, and keeps free ones in the order of V-24: unknown content first, then least recently released."""

    __slots__ = ("_fenced", "_free", "_index", "_leases", "cached", "first", "total")

    def __init__(self, total: int, index: PrefixIndex, *, first: int = 0) -> None:
        self.total = total
        self.first = first
        self.cached = 0
        self._index = index
        self._free = FreeList(total, first=first)
        self._leases = [0] * (first + total)
        self._fenced: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return len(self._free)

    @property
    def clean(self) -> int:
        """Free blocks that hold nothing known."""
        return len(self._free) - self.cached

    @property
    def used(self) -> int:
        """Blocks leased or fenced."""
        return self.total - len(self._free)

    def leases(self, block: int) -> int:
        """How many tables hold ``block``."""
        return self._leases[block]

    def free_order(self) -> list[int]:
        """Free blocks, next to be allocated first. O(free)."""
        return list(self._free)

    def allocate(self, count: int) -> list[int]:
        """Lease the next ``count`` free blocks, dropping what the index knew of them; `CallerError` if too few."""
        blocks = self._free.take(count)
        leases = self._leases
        for block in blocks:
            leases[block] = 1
        if self.cached:
            self.cached -= self._index.forget(blocks)
        return blocks

    def adopt(self, blocks: Sequence[int]) -> None:
        """Lease blocks found in the index; a free one leaves the middle of the free list (V-25)."""
        idle = [block for block in blocks if not self._leases[block]]
        self._free.remove(idle)
        self.cached -= len(idle)
        for block in blocks:
            self._leases[block] += 1

    def readable(self, blocks: list[int]) -> list[int]:
        """The beginning of ``blocks`` up to the first that stands behind a fence."""
        if not self._fenced:
            return blocks
        fenced = {block for behind in self._fenced.values() for block in behind}
        return list(takewhile(lambda block: block not in fenced, blocks))

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` are free: adopting them would shrink what can be allocated (V-10)."""
        return sum(1 for block in blocks if not self._leases[block])

    def publish(self, keys: Sequence[Hashable], blocks: Sequence[int]) -> None:
        """The index learns what leased blocks hold."""
        self._index.publish(keys, blocks)

    def release(self, table: Sequence[int], *, fence: int | None = None) -> None:
        """End one lease of each block, last block first (V-24), at once or when ``fence`` is lifted."""
        freed, leases = [], self._leases
        for block in reversed(table):
            count = leases[block] - 1
            if count < 0:
                raise CallerError(f"block {block} is not leased")
            leases[block] = count
            if not count:
                freed.append(block)
        if fence is None:
            self._settle(freed)
        elif freed:
            self._fenced.setdefault(fence, []).extend(freed)

    def lift(self, fence: int) -> None:
        """Nothing touches the blocks behind ``fence`` any more: they are free. Unknown fences are ignored."""
        self._settle(self._fenced.pop(fence, []))

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Conservation over ``tables``; `LawError` with every term. O(total)."""
        counted: dict[int, int] = {}
        for table in tables:
            for block in table:
                counted[block] = counted.get(block, 0) + 1
        fenced = [block for blocks in self._fenced.values() for block in blocks]
        cached = sum(1 for block in self._free if block in self._index)
        leased = {block: count for block, count in enumerate(self._leases) if count}
        terms = f"clean {self.clean} + cached {self.cached} + leased {len(leased)} + fenced {len(fenced)}"
        if len(self._free) + len(leased) + len(fenced) != self.total or cached != self.cached:
            raise LawError(f"{terms} != total {self.total} (cached blocks counted: {cached})")
        if counted != leased:
            raise LawError(f"lease counts {leased} differ from block tables {counted}")
        places = [*self._free, *leased, *fenced]
        if sorted(places) != list(range(self.first, self.first + self.total)):
            raise LawError(f"a block is in two places or in none: {sorted(places)}")

    def _settle(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self._index:
                self._free.push_back(block)
                self.cached += 1
            else:
                self._free.push_front(block)
