"""Blocks in host memory: where swapped requests wait, and where evicted prompt beginnings may still be found.

::

    free      may be written
    held      the KV of a swapped request
    cached    a prompt beginning that was evicted from the device, least recently used first
    settling  given up, but the plan being built still reads it

Law: free + held + cached + settling = total. Copies out of a plan happen before its copies in, so what the plan reads,
or has filled already, is not given out a second time before the plan is made (`settle`).
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from scheduler_core.types.errors import CallerError, LawError


class HostPool:
    """``total`` host blocks with ids from 0. All operations are O(1) per block."""

    __slots__ = ("_cached", "_free", "_settling", "_touched", "held", "lost", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        self.lost = 0
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[Hashable, int] = OrderedDict()
        self._settling: list[int] = []
        self._touched: set[Hashable] = set()  # cached beginnings that the plan being built reads or fills

    @property
    def available(self) -> int:
        """Blocks that can be taken now, cached ones included."""
        return len(self._free) + len(self._cached) - len(self._touched)

    @property
    def cached(self) -> int:
        """Blocks that hold prompt beginnings."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that hold something."""
        return self.total - len(self._free) - len(self._settling)

    def hold(self, count: int) -> list[int]:
        """Take ``count`` blocks for a swapped request, least recently used beginnings giving way."""
        if count > self.available:
            raise CallerError(f"{count} host blocks asked for, {self.available} are available")
        self.held += count
        return [self._take() for _ in range(count)]

    def give_back(self, blocks: Sequence[int]) -> None:
        """A swapped request needs ``blocks`` no more, once the plan being built has read them."""
        self.held -= len(blocks)
        self._settling += blocks

    def store(self, key: Hashable) -> int | None:
        """A block to write the content of ``key`` to; None when it is here already, or when there is no room for it."""
        if key in self._cached:
            self._cached.move_to_end(key)
            return None
        if not self.available:
            self.lost += 1
            return None
        self._cached[key] = block = self._take()
        self._touched.add(key)
        return block

    def match(self, keys: Sequence[Hashable], start: int, stop: int) -> int:
        """How many of ``keys[start:stop]``, from the first on, are here."""
        found = start
        while found < stop and keys[found] in self._cached:
            found += 1
        return found - start

    def read(self, keys: Iterable[Hashable]) -> list[int]:
        """Blocks of ``keys``, which `match` found; they stay, as the most recently used ones."""
        blocks = []
        for key in keys:
            self._cached.move_to_end(key)
            self._touched.add(key)
            blocks.append(self._cached[key])
        return blocks

    def settle(self) -> None:
        """The plan being built is made: what it reads or fills may be used for other things by the next one."""
        if self._settling:
            self._free += self._settling
            self._settling = []
        self._touched.clear()

    def clear(self) -> int:
        """Forget all prompt beginnings; returns how many blocks held one."""
        count = len(self._cached)
        self._settling += self._cached.values()
        self._cached.clear()
        self._touched.clear()
        return count

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Conservation, with ``tables`` of the swapped requests; `LawError` with every term. O(total)."""
        held = [block for table in tables for block in table]
        places = [*self._free, *held, *self._cached.values(), *self._settling]
        if sorted(places) != list(range(self.total)) or len(held) != self.held:
            raise LawError(
                f"host: free {len(self._free)} + held {self.held} (tables {len(held)}) + cached {len(self._cached)} + "
                f"settling {len(self._settling)} != total {self.total}, or a block is in two places: {sorted(places)}"
            )

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        key = next(iter(self._cached))  # what this plan touches stands at the end
        return self._cached.pop(key)
