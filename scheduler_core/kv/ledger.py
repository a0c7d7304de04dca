"""The account of KV blocks: every block is in exactly one place.

::

    clean-free   holds nothing anyone knows
    cached-free  nobody uses it, its content is indexed and may be hit again
    leased       in the table of one or more requests (the lease count)
    fenced       leased only by tables given up, which an executor may still be writing or reading

A table given up behind a fence keeps its leases until the fence is lifted, so whatever the fence holds back is
protected as if its request lived: another may lease it too, and nothing is evicted from under it.

Law: clean + cached + leased + fenced = total, and the lease counts add up to the lengths of all tables, the fenced
ones included.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain

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
        self._fenced: dict[int, list[Sequence[int]]] = {}

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
        self.share(blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """One more lease of each of ``blocks``."""
        leases = self._leases
        self._index.take([block for block in blocks if not leases[block]])
        for block in blocks:
            leases[block] += 1

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
            self.share(present)
            table[start : start + len(present)] = present
            self.release(own, fence=fence)
        return present

    def retract(self, blocks: Sequence[int]) -> None:
        """Leased ``blocks`` do not hold what was published of them after all."""
        self._index.retract(blocks)

    def release(self, table: Sequence[int], *, fence: int | None = None) -> None:
        """End one lease of each block, last block first (V-24), at once or when ``fence`` is lifted."""
        if fence is not None:
            self._fenced.setdefault(fence, []).append(table)
            return
        freed, leases = [], self._leases
        for block in reversed(table):
            count = leases[block] - 1
            if count < 0:
                raise CallerError(f"block {block} is not leased")
            leases[block] = count
            if not count:
                freed.append(block)
        self._settle(freed)

    def pin(self, table: Sequence[int], fence: int) -> None:
        """One more lease of each leased block of ``table``, which ends when ``fence`` is lifted."""
        self.share(table)
        self.release(list(table), fence=fence)

    def lift(self, fence: int) -> None:
        """Nothing touches what stands behind ``fence`` any more: its leases end. Unknown fences are ignored."""
        for table in self._fenced.pop(fence, ()):
            self.release(table)

    def evict(self, count: int) -> int:
        """Make at least ``count`` cached blocks clean, as many as there are; returns how many."""
        gone = self._evicted(min(count, self._index.idle))
        self._clean[:0] = reversed(gone)  # they stay last in order of allocation
        return len(gone)

    def forget(self) -> int:
        """Make all cached blocks clean because what they hold is void, so that nobody is told; returns how many."""
        gone = [item.block for item in self._index.evict(self._index.idle)]
        self._clean[:0] = reversed(gone)
        return len(gone)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Conservation over ``tables``; `LawError` with every term. O(total)."""
        live = Counter(chain.from_iterable(tables))
        given_up = Counter([block for behind in self._fenced.values() for block in chain.from_iterable(behind)])
        cached = self._index.eviction_order()
        leased = {block: count for block, count in enumerate(self._leases) if count}
        fenced = given_up.keys() - live.keys()
        terms = f"clean {self.clean} + cached {self.cached} + leased {len(live)} + fenced {len(fenced)}"
        if self.free + len(leased) != self.total or len(cached) != self.cached:
            raise LawError(f"{terms} != total {self.total} (cached blocks counted: {len(cached)})")
        counted = live + given_up
        if counted != leased:
            raise LawError(f"lease counts {leased} differ from block tables {counted}")
        places = [*self._clean, *cached, *leased]
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

    def _settle(self, blocks: list[int]) -> None:
        """Known blocks go to the index, unknown ones to the front, to be allocated in the order given (V-24)."""
        keep = self._index.keep
        unknown = [block for block in blocks if not keep(block)]
        self._clean += unknown[::-1]
