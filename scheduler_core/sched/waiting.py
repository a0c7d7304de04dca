"""The waiting queue: in the policy's order, with O(log n) insertion and removal at most."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.decisions import Place
from scheduler_core.sched.policy import PolicySet
from scheduler_core.types.errors import CallerError

Entry = tuple[int, tuple[int, ...], int, int, LiveRequest]


class Queue(Protocol):
    """Requests that wait, in the order in which they are considered."""

    def __len__(self) -> int: ...
    def __contains__(self, request: LiveRequest) -> bool: ...
    def __iter__(self) -> Iterator[LiveRequest]: ...

    def push(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """Insert by ``key``, then by arrival sequence."""

    def push_front(self, request: LiveRequest) -> None:
        """Insert before everyone."""

    def push_back(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """Insert behind all that wait with an equal key."""

    def tenants(self) -> frozenset[str]:
        """Tenants that have requests waiting."""

    def head(self) -> LiveRequest | None:
        """The next request, not removed."""

    def remove(self, request: LiveRequest) -> None:
        """Take ``request`` out; `KeyError` if it does not wait."""

    def take(self) -> Any:
        """Remove the head; returns what `restore` needs to put it back to its place."""

    def restore(self, entry: Any) -> None:
        """Put back an entry that `take` returned; those taken last first."""


def queue_for(policy: PolicySet) -> Queue:
    """The cheapest queue that keeps the order of ``policy``."""
    if policy.account is not None:
        return FairQueue(policy.account.rank)
    if policy.arrange is not None or (policy.order.first_come and policy.requeue is Place.FRONT):
        return ArrivalQueue()
    return WaitingQueue()


class ArrivalQueue:
    """First come, first served, and whoever comes back stands in front: one order, so that no key is compared. O(1)."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: OrderedDict[int, LiveRequest] = OrderedDict()

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
        self._requests[request.id] = request
        self._requests.move_to_end(request.id, last=False)

    def push_back(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """As `push`."""
        self._requests[request.id] = request

    def tenants(self) -> frozenset[str]:
        """Tenants that have requests waiting. O(n)."""
        return frozenset(request.spec.tenant for request in self)

    def head(self) -> LiveRequest | None:
        """The next request, not removed."""
        return next(iter(self._requests.values()), None)

    def remove(self, request: LiveRequest) -> None:
        """Take ``request`` out; `KeyError` if it does not wait."""
        del self._requests[request.id]

    def take(self) -> LiveRequest:
        """Remove and return the head, which `restore` can put back."""
        return self._requests.popitem(last=False)[1]

    def restore(self, entry: LiveRequest) -> None:
        """Put back what `take` returned; what was taken last comes first."""
        self.push_front(entry)

    def arrange(self, order: Iterable[int]) -> None:
        """Put all requests, given by id, into this order. O(n)."""
        requests = self._requests
        self._requests = OrderedDict((number, requests[number]) for number in order)
        if len(self._requests) != len(requests):
            raise CallerError(f"{len(requests)} requests wait, {len(self._requests)} were put in order")


class WaitingQueue:
    """A heap of (rank, key, place, number of the entry, request).

    ``rank`` 0 is for requests put at the front, of which the latest comes first; 1 for all others. Removed entries
    stay in the heap until they surface.
    """

    __slots__ = ("_entries", "_fronts", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._entries: dict[int, int] = {}  # request id -> number of its valid entry
        self._fronts = 0
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: LiveRequest) -> bool:
        return request.id in self._entries

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[LiveRequest]:
        """In queue order. O(n log n)."""
        return (entry[4] for entry in sorted(self._heap, key=lambda e: e[:4]) if self._valid(entry))

    def push(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """Insert by ``key``, then by arrival sequence."""
        self._insert(1, key, request.seq, request)

    def push_front(self, request: LiveRequest) -> None:
        """Insert before everyone."""
        self._fronts -= 1
        self._insert(0, (), self._fronts, request)

    def push_back(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        """Insert behind all that wait with an equal key."""
        self._insert(1, key, (1 << 62) + self._number, request)

    def tenants(self) -> frozenset[str]:
        """Tenants that have requests waiting. O(n); only policies with an account ask, and those use `FairQueue`."""
        return frozenset(request.spec.tenant for request in self)

    def head(self) -> LiveRequest | None:
        """The next request, not removed. Amortised O(log n)."""
        heap = self._heap
        while heap:
            if self._valid(heap[0]):
                return heap[0][4]
            heapq.heappop(heap)
        return None

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
        self._entries[entry[4].id] = entry[3]
        heapq.heappush(self._heap, entry)

    def _insert(self, rank: int, key: tuple[int, ...], place: int, request: LiveRequest) -> None:
        self._number += 1
        self._entries[request.id] = self._number
        heapq.heappush(self._heap, (rank, key, place, self._number, request))

    def _valid(self, entry: Entry) -> bool:
        return self._entries.get(entry[4].id) == entry[3]


class FairQueue:
    """One queue per tenant; the head is the head of the tenant that ranks first now (VT-03).

    Ranks may change while requests wait. All operations are O(log n) plus O(tenants) for the head.
    """

    __slots__ = ("_queues", "_rank")

    def __init__(self, rank: Callable[[str], tuple[int, ...]]) -> None:
        self._rank = rank
        self._queues: dict[str, WaitingQueue] = {}

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def __contains__(self, request: LiveRequest) -> bool:
        return request in self._queues.get(request.spec.tenant, ())

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[LiveRequest]:
        for tenant in sorted(self._queues, key=self._place):
            yield from self._queues[tenant]

    def push(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        self._queue(request).push(request, key)

    def push_front(self, request: LiveRequest) -> None:
        self._queue(request).push_front(request)

    def push_back(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        self._queue(request).push_back(request, key)

    def tenants(self) -> frozenset[str]:
        """Tenants that have requests waiting."""
        return frozenset(self._queues)

    def head(self) -> LiveRequest | None:
        """The oldest request of the tenant that ranks first, not removed."""
        if not self._queues:
            return None
        return self._queues[min(self._queues, key=self._place)].head()

    def remove(self, request: LiveRequest) -> None:
        """Take ``request`` out; `KeyError` if it does not wait."""
        queue = self._queues[request.spec.tenant]
        queue.remove(request)
        if not queue:
            del self._queues[request.spec.tenant]

    def take(self) -> Entry:
        """Remove and return the head's entry, which `restore` can put back to its place."""
        tenant = min(self._queues, key=self._place)
        entry = self._queues[tenant].take()
        if not self._queues[tenant]:
            del self._queues[tenant]
        return entry

    def restore(self, entry: Entry) -> None:
        """Put back an entry that `take` returned."""
        self._queue(entry[4]).restore(entry)

    def _queue(self, request: LiveRequest) -> WaitingQueue:
        return self._queues.setdefault(request.spec.tenant, WaitingQueue())

    def _place(self, tenant: str) -> tuple[int, ...]:
        head = self._queues[tenant].head()
        assert head is not None  # empty queues are dropped
        return (*self._rank(tenant), head.seq)
