"""Queues whose head may change by time alone."""

import heapq
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.waiting import ArrivalQueue, Numbers, Queue, WaitingQueue
from scheduler_core.types.time import Ns


class Timed(Queue):
    """A queue whose head may change by time alone."""

    __slots__ = ()

    @abstractmethod
    def begin(self, now_ns: Ns) -> None:
        """Time has come to ``now_ns``."""

    @abstractmethod
    def wake_ns(self) -> Ns | None:
        """When the head may change by time alone."""


class _Age(NamedTuple):
    entered_ns: Ns
    number: int
    request: LiveRequest


class AgedQueue(Timed):
    """The order of another queue, but who has waited for ``bound_ns`` comes first, the longest waiting of them.

    Bound on starvation, for any inner order: once a request has waited ``bound_ns`` it is passed by nobody who entered
    the queue after it. A newcomer enters at its arrival, one that was stopped when it is. All operations are
    O(log n) beside those of the inner queue.
    """

    __slots__ = ("_ages", "_bound_ns", "_entered", "_inner", "_now_ns", "_numbers")

    def __init__(self, inner: Queue, bound_ns: Ns, numbers: Numbers | None = None) -> None:
        self._inner = inner
        self._bound_ns = bound_ns
        self._ages: list[_Age] = []  # entries of requests that have left stay until they surface
        self._entered: dict[int, _Age] = {}
        self._numbers = numbers or Numbers()
        self._now_ns: Ns = 0

    def __len__(self) -> int:
        return len(self._entered)

    def __contains__(self, request: LiveRequest) -> bool:
        return request.id in self._entered

    def __bool__(self) -> bool:
        return bool(self._entered)

    def __iter__(self) -> Iterator[LiveRequest]:
        """In queue order now. O(n log n)."""
        due = [age for age in sorted(self._entered.values()) if age.entered_ns + self._bound_ns <= self._now_ns]
        yield from [age.request for age in due]
        first = {age.request.id for age in due}
        yield from [request for request in self._inner if request.id not in first]

    def push(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        self._enter(request)
        self._inner.push(request, key)

    def push_front(self, request: LiveRequest) -> None:
        self._enter(request)
        self._inner.push_front(request)

    def push_back(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        self._enter(request)
        self._inner.push_back(request, key)

    def tenants(self) -> frozenset[str]:
        """Tenants that have requests waiting."""
        return self._inner.tenants()

    def head(self) -> LiveRequest | None:
        """The longest waiting request if it has waited for the bound, else the head of the other order."""
        oldest = self._oldest()
        if oldest is not None and oldest.entered_ns + self._bound_ns <= self._now_ns:
            return oldest.request
        return self._inner.head()

    def place(self, request: LiveRequest) -> tuple[Any, ...]:
        """Where ``request`` stands now: smaller is earlier, one that has waited for the bound begins with 0."""
        age = self._entered[request.id]
        if age.entered_ns + self._bound_ns <= self._now_ns:
            return (0, age.entered_ns, age.number)
        assert isinstance(self._inner, WaitingQueue)  # what is asked for places is ordered by key
        return (1, *self._inner.place(request))

    def remove(self, request: LiveRequest) -> None:
        """Take ``request`` out; `KeyError` if it does not wait."""
        del self._entered[request.id]
        self._inner.remove(request)

    def take(self) -> Any:
        """Remove and return the head's entry, which `restore` can put back to its place."""
        head = self.head()
        assert head is not None  # asked only while somebody waits
        age = self._entered.pop(head.id)
        if head is self._inner.head():
            return age, self._inner.take()
        self._inner.remove(head)
        return age, None

    def restore(self, entry: Any) -> None:
        """Put back an entry that `take` returned. One that came first by its age keeps it, whatever the other order."""
        age, inner = entry
        self._entered[age.request.id] = age
        heapq.heappush(self._ages, age)
        if inner is None:
            self._inner.push_front(age.request)
        else:
            self._inner.restore(inner)

    def begin(self, now_ns: Ns) -> None:
        """Time has come to ``now_ns``."""
        self._now_ns = now_ns

    def arrange(self, order: Iterable[int]) -> None:
        """Put those who wait, given by id, into this order; who has waited for the bound still comes before."""
        assert isinstance(self._inner, ArrivalQueue)  # what `queue_for` gives policies that arrange
        self._inner.arrange(order)

    def wake_ns(self) -> Ns | None:
        """When the head may change by time alone."""
        oldest = self._oldest()
        if oldest is None or oldest.entered_ns + self._bound_ns <= self._now_ns:
            return None
        return oldest.entered_ns + self._bound_ns

    def _enter(self, request: LiveRequest) -> None:
        self._numbers.other += 1
        again = request.preemptions or request.run_seq >= 0
        entered = self._now_ns if again else request.spec.arrival_ns
        age = _Age(entered, self._numbers.other, request)
        self._entered[request.id] = age
        heapq.heappush(self._ages, age)

    def _oldest(self) -> _Age | None:
        while self._ages:
            if self._entered.get(self._ages[0].request.id) is self._ages[0]:
                return self._ages[0]
            heapq.heappop(self._ages)
        return None


class HeldQueue(Timed):
    """Another queue, behind a bench: who is held back waits, but is no candidate before its time.

    Nobody is lost: all who are held are let in at their times, in order of time and submission. O(log n).
    """

    __slots__ = ("_bench", "_held", "_number", "_timed", "inner")

    def __init__(self, inner: Queue) -> None:
        self.inner = inner
        self._timed = inner if isinstance(inner, Timed) else None
        self._bench: list[tuple[Ns, int, LiveRequest, tuple[int, ...]]] = []
        self._held: dict[int, int] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self.inner) + len(self._held)

    def __contains__(self, request: LiveRequest) -> bool:
        return request.id in self._held or request in self.inner

    def __iter__(self) -> Iterator[LiveRequest]:
        """Candidates in queue order, then those held back by time."""
        yield from self.inner
        yield from [entry[2] for entry in sorted(self._bench, key=lambda e: e[:2]) if self._valid(entry)]

    def hold(self, request: LiveRequest, key: tuple[int, ...], until_ns: Ns) -> None:
        """Keep ``request`` back until ``until_ns``; then it enters by ``key``."""
        self._number += 1
        self._held[request.id] = self._number
        heapq.heappush(self._bench, (until_ns, self._number, request, key))

    def begin(self, now_ns: Ns) -> None:
        """Time has come to ``now_ns``: let in whose time it is."""
        while self._bench and (self._bench[0][0] <= now_ns or not self._valid(self._bench[0])):
            entry = heapq.heappop(self._bench)
            if self._valid(entry):
                del self._held[entry[2].id]
                self.inner.push(entry[2], entry[3])
        if self._timed is not None:
            self._timed.begin(now_ns)

    def wake_ns(self) -> Ns | None:
        """When the next one is let in, or the head changes by time."""
        times = [entry[0] for entry in self._bench[:1]]
        inner = None if self._timed is None else self._timed.wake_ns()
        return min(times if inner is None else [*times, inner], default=None)

    def arrange(self, order: Iterable[int]) -> None:
        """Put the candidates among those who wait, given by id, into this order."""
        assert isinstance(self.inner, ArrivalQueue | AgedQueue)  # what `queue_for` gives policies that arrange
        self.inner.arrange([request for request in order if request not in self._held])

    def push(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        self.inner.push(request, key)

    def push_front(self, request: LiveRequest) -> None:
        self.inner.push_front(request)

    def push_back(self, request: LiveRequest, key: tuple[int, ...]) -> None:
        self.inner.push_back(request, key)

    def tenants(self) -> frozenset[str]:
        """Tenants that have candidates waiting."""
        return self.inner.tenants()

    def head(self) -> LiveRequest | None:
        """The next candidate, not removed."""
        return self.inner.head()

    def remove(self, request: LiveRequest) -> None:
        """Take ``request`` out; `KeyError` if it does not wait."""
        if self._held.pop(request.id, None) is None:
            self.inner.remove(request)

    def take(self) -> Any:
        """Remove and return the head's entry, which `restore` can put back to its place."""
        return self.inner.take()

    def restore(self, entry: Any) -> None:
        """Put back an entry that `take` returned."""
        self.inner.restore(entry)

    def _valid(self, entry: tuple[Ns, int, LiveRequest, tuple[int, ...]]) -> bool:
        return self._held.get(entry[2].id) == entry[1]
