"""What a shard has to send when: arrivals at absolute times, others once those they wait for have ended."""

import heapq
from collections.abc import Sequence

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.dependencies import Dependents
from scheduler_core.types.time import Ns


class SendAgenda:
    """Requests by intended send time."""

    def __init__(self, requests: Sequence[PlannedRequest]) -> None:
        self._later = Dependents()
        self._heap: list[tuple[Ns, int, PlannedRequest]] = []
        known = {request.index for request in requests}
        for request in requests:
            parents = [parent for parent in request.after if parent in known]
            if parents:
                self._later.add(request, parents)
            else:
                self._heap.append((request.arrival_ns, request.index, request))
        heapq.heapify(self._heap)
        self.left = len(requests)

    @property
    def next_ns(self) -> Ns | None:
        """When the next request is due; None when none is, for now or for ever."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ns: Ns) -> list[tuple[Ns, PlannedRequest]]:
        """Remove and return what is due by ``now_ns``, in order."""
        found = []
        while self._heap and self._heap[0][0] <= now_ns:
            at, _, request = heapq.heappop(self._heap)
            found.append((at, request))
        self.left -= len(found)
        return found

    def in_order(self) -> list[tuple[Ns, PlannedRequest]]:
        """What is due by itself, the earliest first, with its time."""
        return [(at, request) for at, _, request in sorted(self._heap)]

    def ended(self, request: int, at_ns: Ns) -> list[tuple[Ns, PlannedRequest]]:
        """``request`` has ended: those that waited for it alone are due after their think time; they are returned."""
        released = self._later.ended(request, at_ns)
        for due_ns, later in released:
            heapq.heappush(self._heap, (due_ns, later.index, later))
        return released

    def waits_for(self, request: int) -> Sequence[PlannedRequest]:
        """Requests that wait for ``request``."""
        return self._later.on(request)
