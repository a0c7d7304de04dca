"""Blocks in host memory, where swapped requests wait.

::

    free      may be written
    held      the KV of a swapped request
    settling  given up, but the plan being built still reads it

Law: free + held + settling = total. Copies out of a plan happen before its copies in, so what the plan reads is not
given out a second time before the plan is made (`settle`).
"""

from collections.abc import Iterable, Sequence

from scheduler_core.types.errors import CallerError, LawError


class HostPool:
    """``total`` host blocks with ids from 0. All operations are O(1) per block."""

    __slots__ = ("_free", "_settling", "held", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        self._free = list(range(total - 1, -1, -1))
        self._settling: list[int] = []

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that hold something."""
        return self.held

    def hold(self, count: int) -> list[int]:
        """Take ``count`` blocks for a swapped request."""
        if count > self.available:
            raise CallerError(f"{count} host blocks asked for, {self.available} are available")
        self.held += count
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: Sequence[int]) -> None:
        """A swapped request needs ``blocks`` no more, once the plan being built has read them."""
        self.held -= len(blocks)
        self._settling += blocks

    def settle(self) -> None:
        """The plan being built is made: what it reads may be used for other things by the next one."""
        if self._settling:
            self._free += self._settling
            self._settling = []

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Conservation, with ``tables`` of the swapped requests; `LawError` with every term. O(total)."""
        held = [block for table in tables for block in table]
        places = [*self._free, *held, *self._settling]
        if sorted(places) != list(range(self.total)) or len(held) != self.held:
            raise LawError(
                f"host: free {len(self._free)} + held {self.held} (tables {len(held)}) + settling "
                f"{len(self._settling)} != total {self.total}, or a block is in two places: {sorted(places)}"
            )
