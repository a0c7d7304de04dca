"""Arrivals for long simulations: read from the plan only when they are due."""

import heapq
from collections.abc import Iterable, Sequence

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.dependencies import Dependents, dependents_of
from scheduler_core.types.errors import CallerError
from scheduler_core.types.time import NEVER, Ns


class ArrivalStream:
    """Requests by (arrival, index); ``next_ns`` is when the next one comes.

    A sequence may hold dependent requests; any other iterable is read as it comes, must be in order of arrival and is
    never held as a whole.
    """

    def __init__(self, requests: Iterable[PlannedRequest]) -> None:
        self._dependents = Dependents()
        self._due: list[tuple[Ns, int, PlannedRequest]] = []
        self.independent = True
        if isinstance(requests, Sequence):
            self._dependents = dependents_of(requests)
            self.independent = not self._dependents
            requests = sorted(
                (request for request in requests if not request.after), key=lambda r: (r.arrival_ns, r.index)
            )
        self._source = iter(requests)
        self._last: Ns = 0
        self.next_ns: Ns = NEVER
        self._next: tuple[Ns, PlannedRequest] | None = None
        self._fill()

    @property
    def over(self) -> bool:
        """Whether no request is left, dependent ones included."""
        return self.next_ns == NEVER and not self._dependents

    def take(self) -> tuple[Ns, PlannedRequest]:
        """The next arrival and its time; only while ``next_ns`` is not `NEVER`."""
        assert self._next is not None
        taken = self._next
        self._fill()
        return taken

    def ended(self, request: int, at_ns: Ns) -> None:
        """``request`` is over: those that waited for it alone arrive after their think time."""
        if self.independent:
            return
        for due_ns, dependent in self._dependents.ended(request, at_ns):
            heapq.heappush(self._due, (due_ns, dependent.index, dependent))
        if self._next is not None:
            heapq.heappush(self._due, (self._next[0], self._next[1].index, self._next[1]))
            self._next = None
        self._merge()

    def _fill(self) -> None:
        """Make the earliest of stream and dependents the next one."""
        request = next(self._source, None)
        if request is not None:
            if request.after or request.arrival_ns < self._last:
                raise CallerError(f"request {request.index}: a stream must be in order of arrival, without dependents")
            self._last = request.arrival_ns
        if self.independent:
            self._next = None if request is None else (request.arrival_ns, request)
            self.next_ns = NEVER if request is None else request.arrival_ns
            return
        if request is not None:
            heapq.heappush(self._due, (request.arrival_ns, request.index, request))
        self._next = None
        self._merge()

    def _merge(self) -> None:
        if self._next is None and self._due:
            at_ns, _, request = heapq.heappop(self._due)
            self._next = (at_ns, request)
        self.next_ns = NEVER if self._next is None else self._next[0]
