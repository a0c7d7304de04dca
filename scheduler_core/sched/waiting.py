"""The waiting queue: in the policy's order, with O(log n) insertion and removal at most."""

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from scheduler_core.request.live import LiveRequest
from scheduler_core.types.errors import CallerError

Entry = tuple[int, tuple[int, ...], int, int, LiveRequest]


class Numbers:
    """Counts of insertions at the front and elsewhere; queues that share them have comparable places."""

    __slots__ = ("front", "other")

    def __init__(self) -> None:
        self.front = self.other = 0


class Queue(ABC):
    """Requests that wait, in the order in which they are considered."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __contains__(self, request: LiveRequest) -> bool: ...

    @abstractmethod
    def __iter__(self) -> Iterator[LiveRequest]: ...

    @abstractmethod
    def push(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """Insert by ``key``, then by arrival sequence."""

    @abstractmethod
    def push_front(self, request: LiveRequest) -> None:
        """Insert before everyone."""

    @abstractmethod
    def push_back(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """Insert behind all that wait with an equal key."""

    @abstractmethod
    def tenants(self) -> frozenset[str]:
        """Tenants that have requests waiting."""

    @abstractmethod
    def head(self) -> LiveRequest | None:
        """The next request, not removed."""

    @abstractmethod
    def remove(self, request: LiveRequest) -> None:
        """Take ``request`` out; `KeyError` if it does not wait."""

    @abstractmethod
    def take(self) -> Any:
        """Remove the head; returns what `restore` needs to put it back to its place."""

    @abstractmethod
    def restore(self, entry: Any) -> None:
        """Put back an entry that `take` returned; those taken last first."""


class ArrivalQueue(Queue):
    """First come, first served, and whoever comes back stands in front: one order, so that no key is compared. O(1)."""

    __slots__ = ("_head", "_requests")

    def __init__(self) -> None:
        self._requests: OrderedDict[int, LiveRequest] = OrderedDict()
        self._head: LiveRequest | None = None  # as far as it is known: it is asked for far more often than it changes

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: LiveRequest) -> bool:
        return request.id in self._requests

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __iter__(self) -> Iterator[LiveRequest]:
        """In queue order."""
        return iter(self._requests.values())

    def push(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """Insert behind everyone; ``key`` is that of every request."""
        self._requests[request.id] = request

    def push_front(self, request: LiveRequest) -> None:
        """Insert before everyone."""
        self._requests[request.id] = self._head = request
        self._requests.move_to_end(request.id, last=False)

    def push_back(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """As `push`."""
        self._requests[request.id] = request

    def tenants(self) -> frozenset[str]:
        """Tenants that have requests waiting. O(n)."""
        return frozenset(request.spec.tenant for request in self)

    def head(self) -> LiveRequest | None:
        """The next request, not removed."""
        if self._head is None:
            self._head = next(iter(self._requests.values()), None)
        return self._head

    def remove(self, request: LiveRequest) -> None:
        """Take ``request`` out; `KeyError` if it does not wait."""
        del self._requests[request.id]
        if request is self._head:
            self._head = None

    def take(self) -> LiveRequest:
        """Remove and return the head, which `restore` can put back."""
        self._head = None
        return self._requests.popitem(last=False)[1]

    def restore(self, entry: LiveRequest) -> None:
        """Put back what `take` returned; what was taken last comes first."""
        self.push_front(entry)

    def arrange(self, order: Iterable[int]) -> None:
        """Put all requests, given by id, into this order. O(n)."""
        requests, self._head = self._requests, None
        self._requests = OrderedDict((number, requests[number]) for number in order)
        if len(self._requests) != len(requests):
            raise CallerError(f"{len(requests)} requests wait, {len(self._requests)} were put in order")


class WaitingQueue(Queue):
    """A heap with lazy removal. Requests order by (key, arrival sequence); those put in front come before all others.

    With ``by_entry`` those of equal keys order by when they entered, not by when they arrived. Removed entries stay in
    the heap until they surface.
    """

    __slots__ = ("_by_entry", "_entries", "_heap", "_numbers")

    def __init__(self, numbers: Numbers | None = None, *, by_entry: bool = False) -> None:
        self._heap: list[Entry] = []
        self._entries: dict[int, Entry] = {}  # the valid entry of each request
        self._numbers = numbers or Numbers()
        self._by_entry = by_entry

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: LiveRequest) -> bool:
        return request.id in self._entries

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[LiveRequest]:
        """In queue order. O(n log n)."""
        return iter([entry[4] for entry in sorted(self._entries.values(), key=lambda entry: entry[:4])])

    def push(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """Insert by ``key``, then by arrival sequence (or behind all with an equal key)."""
        if self._by_entry:
            self.push_back(request, key)
        else:
            self._insert(1, key, request.seq, request)

    def push_front(self, request: LiveRequest) -> None:
        """Insert before everyone."""
        self._numbers.front -= 1
        self._insert(0, (), self._numbers.front, request)

    def push_back(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """Insert behind all that wait with an equal key."""
        self._insert(1, key, (1 << 62) + self._numbers.other, request)

    def tenants(self) -> frozenset[str]:
        """Tenants that have requests waiting. O(n)."""
        return frozenset(request.spec.tenant for request in self)

    def head(self) -> LiveRequest | None:
        """The next request, not removed. Amortised O(log n)."""
        heap = self._heap
        while heap:
            if self._valid(heap[0]):
                return heap[0][4]
            heapq.heappop(heap)
        return None

    def place(self, request: LiveRequest) -> tuple[Any, ...]:
        """Where ``request`` stands: smaller is earlier; `KeyError` if it does not wait."""
        return self._entries[request.id][:4]

    def remove(self, request: LiveRequest) -> None:
        """Take ``request`` out; `KeyError` if it does not wait."""
        del self._entries[request.id]

    def take(self) -> Entry:
        """Remove and return the head's entry, which `restore` can put back to its place."""
        self.head()
        entry = heapq.heappop(self._heap)
        del self._entries[entry[4].id]
        return entry

    def restore(self, entry: Entry) -> None:
        """Put back an entry that `take` returned."""
        self._entries[entry[4].id] = entry
        heapq.heappush(self._heap, entry)

    def _insert(self, rank: int, key: tuple[int, ...], place: int, request: LiveRequest) -> None:
        self._numbers.other += 1
        self.restore((rank, key, place, self._numbers.other, request))

    def _valid(self, entry: Entry) -> bool:
        found = self._entries.get(entry[4].id)
        return found is not None and found[3] == entry[3]  # each insertion has a number; compiled tuples no identity
