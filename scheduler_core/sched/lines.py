"""A queue in several lines, so that everybody who waits for the same thing can be passed over at once.

A tenant at its quota may have any number of requests waiting: looking at each of them in every step would make a step
cost as much as the queue is long.
"""

from collections.abc import Callable, Iterator
from typing import Any

from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.aging import AgedQueue, HeldQueue, Timed
from scheduler_core.sched.decisions import Place
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.waiting import ArrivalQueue, Numbers, Queue, WaitingQueue
from scheduler_core.types.time import Ns


class Lines(Timed):
    """One order in a line per tenant; lines that are passed over have no head until `recall`.

    The head is the line's head that stands first. With ``rank`` lines order by the rank of their tenant, which may
    change while requests wait (VT-03), then by arrival sequence; only who has waited for the bound of `AgedQueue` comes
    before that. All operations are O(log n), plus O(tenants) for the head.
    """

    __slots__ = ("_aged", "_make", "_now_ns", "_passed", "_queues", "_rank")

    def __init__(
        self, make: Callable[[], WaitingQueue | AgedQueue], rank: Callable[[str], tuple[int, ...]] | None = None
    ) -> None:
        self._make = make
        self._rank = rank
        self._queues: dict[str, WaitingQueue | AgedQueue] = {}
        self._passed: set[str] = set()
        self._now_ns: Ns = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def __contains__(self, request: LiveRequest) -> bool:
        return request in self._queues.get(request.spec.tenant, ())

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[LiveRequest]:
        """In queue order now. O(n log n)."""
        if self._rank is None:
            waiting = [(queue.place(request), request) for queue in self._queues.values() for request in queue]
            yield from [request for _, request in sorted(waiting, key=lambda item: item[0])]
            return
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
        """The first of those who are not passed over, not removed."""
        tenant = self._first()
        return None if tenant is None else self._queues[tenant].head()

    def place(self, request: LiveRequest) -> tuple[Any, ...]:
        """Where ``request`` stands within its line now; comparable between lines without a rank."""
        return self._queues[request.spec.tenant].place(request)

    def remove(self, request: LiveRequest) -> None:
        """Take ``request`` out; `KeyError` if it does not wait."""
        tenant = request.spec.tenant
        self._queues[tenant].remove(request)
        self._drop_empty(tenant)

    def take(self) -> Any:
        """Remove and return the head's entry, which `restore` can put back to its place."""
        tenant = self._first()
        assert tenant is not None  # asked only while somebody is the head
        entry = self._queues[tenant].take()
        self._drop_empty(tenant)
        return tenant, entry

    def restore(self, entry: Any) -> None:
        """Put back an entry that `take` returned."""
        tenant, place = entry
        self._line(tenant).restore(place)

    def pass_over(self, tenant: str) -> None:
        """Nobody of ``tenant`` is the head until `recall`."""
        self._passed.add(tenant)

    def recall(self) -> None:
        """Nobody is passed over any more."""
        self._passed.clear()

    def begin(self, now_ns: Ns) -> None:
        """Time has come to ``now_ns``."""
        self._now_ns = now_ns
        for queue in self._queues.values():
            if isinstance(queue, AgedQueue):
                queue.begin(now_ns)

    def wake_ns(self) -> Ns | None:
        """When the head may change by time alone."""
        aged = [queue.wake_ns() for queue in self._queues.values() if isinstance(queue, AgedQueue)]
        return min([wake for wake in aged if wake is not None], default=None)

    def _first(self) -> str | None:
        tenants = [tenant for tenant in self._queues if tenant not in self._passed] if self._passed else self._queues
        return min(tenants, key=self._place, default=None)

    def _place(self, tenant: str) -> tuple[Any, ...]:
        queue = self._queues[tenant]
        head = queue.head()
        assert head is not None  # empty lines are dropped
        place = queue.place(head)
        due = isinstance(queue, AgedQueue) and place[0] == 0
        return place if self._rank is None or due else (1, *self._rank(tenant), head.seq)

    def _queue(self, request: LiveRequest) -> WaitingQueue | AgedQueue:
        return self._line(request.spec.tenant)

    def _line(self, tenant: str) -> WaitingQueue | AgedQueue:
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = self._make()
            if isinstance(queue, AgedQueue):
                queue.begin(self._now_ns)
        return queue

    def _drop_empty(self, tenant: str) -> None:
        if not self._queues[tenant]:
            del self._queues[tenant]


def queue_of(policy: PolicySet) -> Queue:
    """The cheapest queue that keeps the order of ``policy`` and its bound on waiting."""
    alone = policy.account is None and policy.quotas is None
    first_come = policy.order.first_come and policy.requeue is Place.FRONT
    queue: Queue
    if policy.arrange is not None or not alone:
        queue = ArrivalQueue() if policy.arrange is not None else _lines(policy, first_come=first_come)
    else:
        queue = ArrivalQueue() if first_come else WaitingQueue()
    if policy.starvation_ns is not None and not isinstance(queue, Lines):
        queue = AgedQueue(queue, policy.starvation_ns)
    return queue if policy.gate is None else HeldQueue(queue)


def _lines(policy: PolicySet, *, first_come: bool) -> Lines:
    numbers, account, bound_ns = Numbers(), policy.account, policy.starvation_ns

    def line() -> WaitingQueue | AgedQueue:
        queue = WaitingQueue(numbers, by_entry=first_come and account is None)
        return queue if bound_ns is None else AgedQueue(queue, bound_ns, numbers)

    return Lines(line, None if account is None else account.rank)


def place_of(queue: Queue, request: LiveRequest) -> tuple[Any, ...]:
    """Where one of those who wait by a key stands now: smaller is earlier."""
    inner = queue.inner if isinstance(queue, HeldQueue) else queue
    assert isinstance(inner, WaitingQueue | AgedQueue | Lines)  # those without keys stand in order of arrival
    return inner.place(request)


def lines_of(queue: Queue) -> Lines | None:
    """The lines of a queue that has some."""
    inner = queue.inner if isinstance(queue, HeldQueue) else queue
    return inner if isinstance(inner, Lines) else None
