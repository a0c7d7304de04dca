"""Which cached content goes first when room is needed: orders of eviction as pure keys, and queues that keep them.

What is evicted is a *unit*: one block of a hash index, one leaf segment of a radix tree. Smaller rank goes first, and
equal ranks go in the order in which they fell idle; no clock, no floats.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from scheduler_core.types.errors import CallerError

Unit = TypeVar("Unit", bound=Hashable)

ATTENTION_TOKENS = 4096
"""Position at which computing a token's attention is taken to cost as much as all else of it."""

PROTECTED_USES = 2


@dataclass(slots=True)
class Heat:
    """How a unit was used. Ticks count what happened to the index; ``uses`` counts its making and every hit since.

    ``position`` is the token position in the middle of the unit: the later, the dearer it is to compute again.
    """

    born: int
    last: int
    uses: int = 1
    position: int = 0


Rank: TypeAlias = Callable[[Heat, int], tuple[int, ...]]
"""Rank of a unit that falls idle, given the age: the first number of the rank that was evicted last."""


def _recompute_value(heat: Heat) -> int:
    """Uses times the cost of computing one token of it again, in units of 1/4096 of a token at position 0."""
    return heat.uses * (ATTENTION_TOKENS + heat.position)


# ``fifo`` and ``cost`` may rank a beginning before its continuation: they need an index that evicts leaves only.
EVICTIONS: dict[str, Rank] = {
    # Least recently used (V-24, G-22).
    "lru": lambda heat, age: (heat.last,),
    # First made, first out.
    "fifo": lambda heat, age: (heat.born,),
    # Least frequently used, of those the least recently.
    "lfu": lambda heat, age: (heat.uses, heat.last),
    # Segmented: what was never hit goes before anything that was; least recently used within each.
    "slru": lambda heat, age: (int(heat.uses >= PROTECTED_USES), heat.last),
    # Frequency with ageing (LFU-DA): what was popular long ago does not stay for ever.
    "aged": lambda heat, age: (age + heat.uses, heat.last),
    # Greedy-dual size-frequency: cost of recomputing x uses / size, aged. Cost and size both grow with the tokens.
    "cost": lambda heat, age: (age + _recompute_value(heat), heat.last),
}


class EvictionQueue(Protocol[Unit]):
    """Idle units in the order in which they would be evicted."""

    def add(self, unit: Unit, heat: Heat) -> None:
        """``unit`` has fallen idle."""

    def remove(self, unit: Unit) -> None:
        """``unit`` is used again."""

    def pop(self) -> Unit:
        """Take the next unit to be evicted."""

    def __contains__(self, unit: Unit) -> bool: ...

    def __iter__(self) -> Iterator[Unit]: ...

    def __len__(self) -> int: ...


class ReleaseOrder(Generic[Unit]):
    """Least recently used, where the last use of a unit is the moment it falls idle: O(1) for everything.

    An ordered dictionary is a hash table over a doubly linked list, which is the intrusive list this calls for (V-25).
    """

    __slots__ = ("_units",)

    def __init__(self) -> None:
        self._units: OrderedDict[Unit, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, unit: Unit) -> bool:
        return unit in self._units

    def __iter__(self) -> Iterator[Unit]:
        return iter(self._units)

    def add(self, unit: Unit, heat: Heat) -> None:
        self._units[unit] = None

    def remove(self, unit: Unit) -> None:
        del self._units[unit]

    def pop(self) -> Unit:
        return self._units.popitem(last=False)[0]


class RankedOrder(Generic[Unit]):
    """Units by rank; O(log idle) to add and pop, O(1) to remove. Removed entries stay until they surface."""

    __slots__ = ("_age", "_heap", "_number", "_rank", "_valid")

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._heap: list[tuple[tuple[int, ...], int, Unit]] = []
        self._valid: dict[Unit, int] = {}
        self._number = 0
        self._age = 0

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, unit: Unit) -> bool:
        return unit in self._valid

    def __iter__(self) -> Iterator[Unit]:
        """In order of eviction, as things stand. O(n log n)."""
        return (unit for _, number, unit in sorted(self._heap, key=lambda e: e[:2]) if self._valid.get(unit) == number)

    def add(self, unit: Unit, heat: Heat) -> None:
        if unit in self._valid:
            raise CallerError(f"{unit} is idle already")
        self._number += 1
        self._valid[unit] = self._number
        heapq.heappush(self._heap, (self._rank(heat, self._age), self._number, unit))

    def remove(self, unit: Unit) -> None:
        del self._valid[unit]
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._valid):
            self._heap = [entry for entry in self._heap if self._valid.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def pop(self) -> Unit:
        while True:
            rank, number, unit = heapq.heappop(self._heap)
            if self._valid.get(unit) == number:
                del self._valid[unit]
                self._age = rank[0]
                return unit
