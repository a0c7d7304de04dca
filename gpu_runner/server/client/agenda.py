"""What a shard has to send when: arrivals at absolute times, later turns once the one before has ended."""

import heapq
from collections.abc import Sequence

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.time import Ns


class SendAgenda:
    """Requests by intended send time."""

    def __init__(self, requests: Sequence[PlannedRequest]) -> None:
        self._later: dict[int, list[PlannedRequest]] = {}
        self._heap: list[tuple[Ns, int, PlannedRequest]] = []
        known = {request.index for request in requests}
        for request in requests:
            if request.after is None or request.after not in known:
                self._heap.append((request.arrival_ns, request.index, request))
            else:
                self._later.setdefault(request.after, []).append(request)
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

    def coming(self, most: int) -> list[PlannedRequest]:
        """Up to ``most`` of the requests that are due next, whose bodies can be made ahead."""
        return [request for _, _, request in heapq.nsmallest(most, self._heap)]

    def ended(self, request: int, at_ns: Ns) -> list[PlannedRequest]:
        """``request`` has ended: those that waited for it are due after their think time; they are returned."""
        released = self._later.pop(request, [])
        for later in released:
            heapq.heappush(self._heap, (at_ns + later.arrival_ns, later.index, later))
        return released

    def waits_for(self, request: int) -> list[PlannedRequest]:
        """Requests that wait for ``request``."""
        return self._later.get(request, [])
