"""An ordered list of free blocks with O(1) removal from anywhere."""

from collections.abc import Iterator

from scheduler_core.types.errors import CallerError, LawError

ABSENT = -1


class FreeList:
    """Doubly linked list of block ids ``first .. first + count - 1``, kept in two arrays (intrusive, no nodes).

    ``front`` is allocated next. All operations but iteration and `check` are O(1).
    """

    __slots__ = ("_end", "_first", "_next", "_previous", "_size")

    def __init__(self, count: int, *, first: int = 0) -> None:
        """All ids are free, in order of id (V-24)."""
        self._first = first
        self._end = count  # index of the sentinel that closes the ring
        self._next: list[int] = [*range(1, count + 1), 0]
        self._previous: list[int] = [count, *range(count)]
        self._size = count

    def __len__(self) -> int:
        return self._size

    def __contains__(self, block: int) -> bool:
        return self._next[block - self._first] != ABSENT

    def __iter__(self) -> Iterator[int]:
        at = self._next[self._end]
        while at != self._end:
            yield at + self._first
            at = self._next[at]

    def push_front(self, block: int) -> None:
        """Make ``block`` the next to be allocated."""
        self._insert(block - self._first, self._end)

    def push_back(self, block: int) -> None:
        """Make ``block`` the last to be allocated."""
        self._insert(block - self._first, self._previous[self._end])

    def pop_front(self) -> int:
        """Take the next block; `CallerError` when none is free."""
        at = self._next[self._end]
        if at == self._end:
            raise CallerError("no block is free")
        self._unlink(at)
        return at + self._first

    def remove(self, block: int) -> None:
        """Take ``block`` from wherever it stands (V-25)."""
        if block not in self:
            raise CallerError(f"block {block} is not free")
        self._unlink(block - self._first)

    def check(self) -> None:
        """Both directions visit the same ``len(self)`` blocks; `LawError` otherwise. O(n)."""
        forward = list(self)
        backward: list[int] = []
        at = self._previous[self._end]
        while at != self._end and len(backward) <= self._size:
            backward.append(at + self._first)
            at = self._previous[at]
        if forward != backward[::-1] or len(forward) != self._size:
            raise LawError(f"free list is broken: forward {forward}, backward {backward}, size {self._size}")

    def _insert(self, at: int, after: int) -> None:
        if self._next[at] != ABSENT:
            raise CallerError(f"block {at + self._first} is free already")
        before = self._next[after]
        self._next[after], self._previous[at] = at, after
        self._next[at], self._previous[before] = before, at
        self._size += 1

    def _unlink(self, at: int) -> None:
        after, before = self._previous[at], self._next[at]
        self._next[after], self._previous[before] = before, after
        self._next[at] = self._previous[at] = ABSENT
        self._size -= 1
