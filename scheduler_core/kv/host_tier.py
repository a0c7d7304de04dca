"""The second tier of the prefix cache: what evicted blocks held, in host memory.

A slot is a host block. A plan copies what it evicts to the host before it computes, and what it finds there to the
device after that, so a slot may be filled and read by one plan. What a plan fills or reads is not given to anything
else before the plan is made (`settle`): a slot is no target twice, and nothing is overwritten before it was read.

Law: free + stored = total, each stored slot under one key.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from scheduler_core.types.errors import LawError


class HostTier:
    """``total`` slots from ``first`` on, least recently used going first. All operations are O(1) per key."""

    __slots__ = ("_busy", "_first", "_free", "_slots", "total")

    def __init__(self, total: int, *, first: int = 0) -> None:
        self.total = total
        self._first = first
        self._free = list(range(first + total - 1, first - 1, -1))
        self._slots: OrderedDict[Hashable, int] = OrderedDict()
        self._busy: set[Hashable] = set()

    def __len__(self) -> int:
        """Slots that hold something."""
        return len(self._slots)

    def find(self, keys: Sequence[Hashable]) -> list[int]:
        """Slots of the longest stored beginning of ``keys``, which continue what is on the device. Changes nothing."""
        found = []
        for key in keys:
            slot = self._slots.get(key)
            if slot is None:
                break
            found.append(slot)
        return found

    def use(self, keys: Sequence[Hashable]) -> None:
        """The plan being built reads what is stored under ``keys``."""
        for key in keys:
            self._slots.move_to_end(key)
        self._busy.update(keys)

    def store(self, key: Hashable) -> int | None:
        """The slot that the plan being built has to fill with what ``key`` names.

        None when it is there already, or when the plan needs all slots for other things.
        """
        if key in self._slots:
            self._slots.move_to_end(key)
            return None
        if self._free:
            slot = self._free.pop()
        else:
            oldest = next(iter(self._slots), None)
            if oldest is None or oldest in self._busy:
                return None  # those the plan needs are the newest ones, so all are
            slot = self._slots.pop(oldest)
        self._slots[key] = slot
        self._busy.add(key)
        return slot

    def settle(self) -> None:
        """The plan being built is made."""
        if self._busy:
            self._busy.clear()

    def forget(self) -> int:
        """Give up everything; returns how many slots held something."""
        count = len(self._slots)
        self._free += reversed(self._slots.values())
        self._slots.clear()
        self._busy.clear()
        return count

    def check(self) -> None:
        """Conservation; `LawError` with every term. O(total)."""
        places = sorted([*self._free, *self._slots.values()])
        if places != list(range(self._first, self._first + self.total)):
            raise LawError(
                f"host tier: free {len(self._free)} + stored {len(self._slots)} != total {self.total}, or a slot is in "
                f"two places: {places}"
            )
        if not self._busy <= self._slots.keys():
            raise LawError(f"host tier: {sorted(map(str, self._busy - self._slots.keys()))} are in use, but not stored")
