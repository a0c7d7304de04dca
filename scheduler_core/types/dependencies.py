"""Requests that wait for others: who is due when, and what can never be."""

from collections.abc import Iterable, Mapping, Sequence

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import CallerError
from scheduler_core.types.time import Ns


class Dependents:
    """Requests that wait for the end of others, each until the last one has ended; ``len`` counts those who wait."""

    def __init__(self) -> None:
        self._of: dict[int, list[PlannedRequest]] = {}
        self._open: dict[int, int] = {}
        self._latest: dict[int, Ns] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: PlannedRequest, parents: Iterable[int]) -> None:
        """``request`` waits for all ``parents``, at least one, from its plan."""
        distinct = dict.fromkeys(parents)
        self._open[request.index] = len(distinct)
        for parent in distinct:
            self._of.setdefault(parent, []).append(request)

    def on(self, parent: int) -> Sequence[PlannedRequest]:
        """Who waits for ``parent``, and perhaps for others."""
        return self._of.get(parent, ())

    def ended(self, parent: int, at_ns: Ns) -> list[tuple[Ns, PlannedRequest]]:
        """``parent`` ended, in whatever way: those that waited for nobody else any more, with when they are due.

        That is the latest end of those they waited for, plus their think time.
        """
        due = []
        for request in self._of.pop(parent, ()):
            index = request.index
            latest_ns = max(at_ns, self._latest.pop(index, at_ns))
            if self._open[index] == 1:
                del self._open[index]
                due.append((latest_ns + request.arrival_ns, request))
            else:
                self._open[index] -= 1
                self._latest[index] = latest_ns
        return due


def dependents_of(requests: Iterable[PlannedRequest]) -> Dependents:
    """Those of a whole plan that wait for others of it.

    Raises:
        CallerError: one waits for a request that is not there, or some wait for one another in a circle.
    """
    dependents = Dependents()
    known = set()
    waiting = {}
    for request in requests:
        known.add(request.index)
        if request.after:
            dependents.add(request, request.after)
            waiting[request.index] = request.after
    for index, parents in waiting.items():
        missing = next((parent for parent in parents if parent not in known), None)
        if missing is not None:
            raise CallerError(f"request {index} waits for {missing}, which is not in the plan")
    circle = circle_in(waiting)
    if circle:
        names = " -> ".join(map(str, (*circle, circle[0])))
        raise CallerError(f"requests {names} wait for one another, so none of them can ever start")
    return dependents


def circle_in(waits_for: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Numbers that wait for one another, each for the next and the last for the first; empty when there are none."""
    clear: set[int] = set()
    for start in waits_for:
        path: dict[int, None] = {}
        trail: list[tuple[int, int]] = [(start, 0)]
        while trail:
            number, turn = trail.pop()
            if turn == 0:
                if number in path:
                    members = list(path)
                    return tuple(members[members.index(number) :])
                if number in clear:
                    continue
                path[number] = None
            parents = waits_for.get(number, ())
            if turn < len(parents):
                trail += [(number, turn + 1), (parents[turn], 0)]
            else:
                del path[number]
                clear.add(number)
    return ()
