"""What is due when: arrivals, cancels and dependent turns in one total order."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import CallerError
from scheduler_core.types.time import Ns

ARRIVE, CANCEL = 0, 1


@dataclass(frozen=True, slots=True, order=True)
class Due:
    """One event: time, kind (arrivals before cancels at one instant), request."""

    at_ns: Ns
    kind: int
    request: int


class Agenda:
    """Events by (time, kind, index). A request with ``after`` is due once that request has ended."""

    def __init__(self, requests: Sequence[PlannedRequest], cancels: Iterable[tuple[int, Ns]]) -> None:
        self.requests = {request.index: request for request in requests}
        if len(self.requests) != len(requests):
            raise CallerError("two planned requests have one index")
        self._dependents: dict[int, list[PlannedRequest]] = {}
        self._heap: list[Due] = []
        for request in requests:
            if request.after is None:
                self._heap.append(Due(request.arrival_ns, ARRIVE, request.index))
            elif request.after in self.requests:
                self._dependents.setdefault(request.after, []).append(request)
            else:
                raise CallerError(f"request {request.index} waits for {request.after}, which is not in the plan")
        self._heap.extend(Due(at_ns, CANCEL, request) for request, at_ns in cancels)
        heapq.heapify(self._heap)
        self.undelivered = len(requests)

    def ended(self, request: int, at_ns: Ns) -> None:
        """``request`` is over: those that wait for it arrive after their think time."""
        for dependent in self._dependents.pop(request, ()):
            heapq.heappush(self._heap, Due(at_ns + dependent.arrival_ns, ARRIVE, dependent.index))

    def next_ns(self) -> Ns | None:
        """When the next event is due, or None."""
        return self._heap[0].at_ns if self._heap else None

    def take_due(self, now_ns: Ns) -> Due | None:
        """Remove and return the next event due by ``now_ns``."""
        if not self._heap or self._heap[0].at_ns > now_ns:
            return None
        due = heapq.heappop(self._heap)
        self.undelivered -= due.kind == ARRIVE
        return due
