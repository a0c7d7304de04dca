"""An ordered list of free blocks with O(1) removal from anywhere."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from scheduler_core.types.errors import CallerError


class FreeList:
    """Free block ids in the order in which they are allocated; all operations are O(1) per block.

    An ordered dictionary is a hash table over a doubly linked list, which is the intrusive list this calls for.
    """

    __slots__ = ("_blocks",)

    def __init__(self, count: int, *, first: int = 0) -> None:
        """Ids ``first .. first + count - 1`` are free, in order of id (V-24)."""
        self._blocks = OrderedDict.fromkeys(range(first, first + count))

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def push_front(self, block: int) -> None:
        """Make ``block`` the next to be allocated."""
        self.push_back(block)
        self._blocks.move_to_end(block, last=False)

    def push_back(self, block: int) -> None:
        """Make ``block`` the last to be allocated."""
        if block in self._blocks:
            raise CallerError(f"block {block} is free already")
        self._blocks[block] = None

    def take(self, count: int) -> list[int]:
        """Take the next ``count`` blocks; `CallerError` when fewer are free."""
        if count > len(self._blocks):
            raise CallerError(f"{count} blocks asked for, {len(self._blocks)} are free")
        popitem = self._blocks.popitem
        return [popitem(last=False)[0] for _ in range(count)]

    def remove(self, blocks: Iterable[int]) -> None:
        """Take ``blocks`` from wherever they stand (V-25)."""
        for block in blocks:
            if block not in self._blocks:
                raise CallerError(f"block {block} is not free")
            del self._blocks[block]
