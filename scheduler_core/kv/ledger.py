"""The account of KV blocks: every block is in exactly one place.

::

    clean-free   holds nothing anyone knows
    cached-free  nobody uses it, its content is indexed and may be hit again
    leased       in the table of one or more requests (the lease count)
    fenced       released, but an executor may still be writing or reading it

Law: clean + cached + leased + fenced = total, and the lease counts add up to the lengths of all tables.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import takewhile

from scheduler_core.kv.prefix import Evicted, PrefixIndex
from scheduler_core.types.errors import CallerError, LawError


class Ledger:
    """Leases blocks: those with unknown content first, the latest released of them first, then what the index evicts.

    Both together are the free list of V-24. ``on_evicted``, where it is set, is told what content goes, before the
    blocks are used for anything else.
    """

    __slots__ = ("_clean", "_fenced", "_index", "_leases", "first", "on_evicted", "total")

    def __init__(self, total: int, index: PrefixIndex, *, first: int = 0) -> None:
        self.total = total
        self.first = first
        self.on_evicted: Callable[[list[Evicted]], None] | None = None
        self._index = index
        self._clean = list(range(first + total - 1, first - 1, -1))  # a stack: its end is allocated next
        self._leases = [0] * (first + total)
        self._fenced: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return len(self._clean) + self._index.idle

    @property
    def cached(self) -> int:
        """Free blocks whose content may be hit."""
        return self._index.idle

    @property
    def clean(self) -> int:
        """Free blocks that hold nothing known."""
        return len(self._clean)

    @property
    def used(self) -> int:
        """Blocks leased or fenced."""
        return self.total - len(self._clean) - self._index.idle

    def leases(self, block: int) -> int:
        """How many tables hold ``block``."""
        return self._leases[block]

    def free_order(self) -> list[int]:
        """Free blocks, next to be allocated first. O(free)."""
        return self._clean[::-1] + self._index.eviction_order()

    def allocate(self, count: int) -> list[int]:
        """Lease the next ``count`` free blocks, evicting cached content if it must; `CallerError` if too few."""
        clean, leases = self._clean, self._leases
        blocks = [clean.pop() for _ in range(count)] if count <= len(clean) else self._clear(count)
        for block in blocks:
            leases[block] = 1
        return blocks

    def adopt(self, blocks: Sequence[int]) -> None:
        """Lease blocks found in the index; a free one leaves the middle of the free list (V-25)."""
        self._index.hit(blocks)
        self._share(blocks)

    def readable(self, blocks: list[int]) -> list[int]:
        """The beginning of ``blocks`` up to the first that stands behind a fence."""
        if not self._fenced:
            return blocks
        fenced = {block for behind in self._fenced.values() for block in behind}
        return list(takewhile(lambda block: block not in fenced, blocks))

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` are free: adopting them would shrink what can be allocated (V-10)."""
        return sum(1 for block in blocks if not self._leases[block])

    def publish(
        self, keys: Sequence[Hashable], table: list[int], span: tuple[int, int], *, fence: int | None = None
    ) -> list[int]:
        """The index learns that leased blocks ``table[start:stop]`` hold ``keys[start:stop]``; ``span`` is both.

        Where the index holds some of that already, the table takes those blocks and gives up its own, behind ``fence``
        (G-23); returns the blocks taken, which stand in the table from ``start`` on.
        """
        start = span[0]
        present = self._index.publish(keys, table, span)
        if present:
            own = table[start : start + len(present)]
            self._share(present)
            table[start : start + len(present)] = present
            self.release(own, fence=fence)
        return present

    def retract(self, blocks: Sequence[int]) -> None:
        """Leased ``blocks`` do not hold what was published of them after all."""
        self._index.retract(blocks)

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

    def evict(self, count: int) -> int:
        """Make at least ``count`` cached blocks clean, as many as there are; returns how many."""
        gone = self._evicted(min(count, self._index.idle))
        self._clean[:0] = reversed(gone)  # they stay last in order of allocation
        return len(gone)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Conservation over ``tables``; `LawError` with every term. O(total)."""
        counted: dict[int, int] = {}
        for table in tables:
            for block in table:
                counted[block] = counted.get(block, 0) + 1
        fenced = [block for blocks in self._fenced.values() for block in blocks]
        cached = self._index.eviction_order()
        leased = {block: count for block, count in enumerate(self._leases) if count}
        terms = f"clean {self.clean} + cached {self.cached} + leased {len(leased)} + fenced {len(fenced)}"
        if self.free + len(leased) + len(fenced) != self.total or len(cached) != self.cached:
            raise LawError(f"{terms} != total {self.total} (cached blocks counted: {len(cached)})")
        if counted != leased:
            raise LawError(f"lease counts {leased} differ from block tables {counted}")
        places = [*self._clean, *cached, *leased, *fenced]
        if sorted(places) != list(range(self.first, self.first + self.total)):
            raise LawError(f"a block is in two places or in none: {sorted(places)}")
        known = [block for block in self._clean if block in self._index]
        if known:
            raise LawError(f"blocks {known} are clean, yet the index knows what they hold")
        self._index.check(self._leases)

    def _clear(self, count: int) -> list[int]:
        """All clean blocks and enough evicted ones; an index that gave up more than asked leaves clean ones behind."""
        short = count - len(self._clean)
        if short > self._index.idle:
            raise CallerError(f"{count} blocks asked for, {self.free} are free")
        blocks = self._clean[::-1]
        gone = self._evicted(short)
        self._clean = gone[: short - 1 : -1]
        return blocks + gone[:short]

    def _evicted(self, count: int) -> list[int]:
        evicted = self._index.evict(count)
        if self.on_evicted is not None:
            self.on_evicted(evicted)
        return [item.block for item in evicted]

    def _share(self, blocks: Sequence[int]) -> None:
        leases = self._leases
        unleased = [block for block in blocks if not leases[block]]
        if self._fenced and unleased:  # behind a fence, but what it holds is known: only others were to be written
            unleased = self._unfence(unleased)
        self._index.take(unleased)
        for block in blocks:
            leases[block] += 1

    def _unfence(self, blocks: list[int]) -> list[int]:
        """Take those of ``blocks`` that stand behind a fence from there; returns the others."""
        wanted, fenced = set(blocks), set[int]()
        for fence, behind in self._fenced.items():
            fenced |= wanted.intersection(behind)
            self._fenced[fence] = [block for block in behind if block not in wanted]
        return [block for block in blocks if block not in fenced]

    def _settle(self, blocks: list[int]) -> None:
        """Known blocks go to the index, unknown ones to the front, to be allocated in the order given (V-24)."""
        keep = self._index.keep
        unknown = [block for block in blocks if not keep(block)]
        self._clean += unknown[::-1]
