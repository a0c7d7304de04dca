"""What is due when: arrivals, dependent turns, cancels, time limits and resets in one total order."""

import heapq
from collections.abc import Iterable, Mapping, Sequence

from scheduler_core.drive.cuts import ARRIVE, CANCEL, CacheResetAt, Due, cuts_of
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.dependencies import dependents_of
from scheduler_core.types.errors import CallerError
from scheduler_core.types.patience import Patience
from scheduler_core.types.time import Ns


class Agenda:
    """Events by (time, kind, index). A request with ``after`` is due once all those requests have ended."""

    def __init__(
        self,
        requests: Sequence[PlannedRequest],
        cancels: Iterable[tuple[int, Ns]],
        patience: Mapping[str, Patience],
        resets: Iterable[CacheResetAt] = (),
    ) -> None:
        self.requests = {request.index: request for request in requests}
        if len(self.requests) != len(requests):
            raise CallerError("two planned requests have one index")
        self._patience = patience
        self._dependents = dependents_of(requests)
        self._heap = [Due(request.arrival_ns, ARRIVE, request.index) for request in requests if not request.after]
        self._heap.extend(Due(at_ns, CANCEL, request) for request, at_ns in cancels)
        self._heap.extend(reset.due() for reset in resets)
        heapq.heapify(self._heap)
        self.undelivered = len(requests)

    def arrived(self, request: int, at_ns: Ns) -> None:
        """``request`` is there: from now on its client may cancel and its time runs."""
        for due in cuts_of(self.requests[request], at_ns, self._patience):
            heapq.heappush(self._heap, due)

    def ended(self, request: int, at_ns: Ns) -> None:
        """``request`` is over: those that waited for it alone arrive after their think time."""
        for due_ns, dependent in self._dependents.ended(request, at_ns):
            heapq.heappush(self._heap, Due(due_ns, ARRIVE, dependent.index))

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
