"""KV of requests that wait: given up when somebody needs its blocks, and moved before somebody does (FS-05, FS-06).

A request that loses its slot alone is *set aside*: its blocks stay on the device. They go, the last in the queue first,
when somebody before it needs them, and when fewer blocks are free than are kept for newcomers. While nothing had to go,
what is in the host comes back, the first in the queue first, as far as that room allows.
"""

from collections.abc import Collection, Iterator
from typing import Any

from scheduler_core.request.lifecycle import State
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.decisions import Deferral
from scheduler_core.sched.lines import place_of
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.state import InstanceState
from scheduler_core.sched.stopping import Stop, fetch, stop
from scheduler_core.types.reasons import Defer, Preempt
from scheduler_core.types.time import Ns


class Aside:
    """Requests that wait with their KV, while a step is planned."""

    __slots__ = ("_policy", "_state", "_went")

    def __init__(self, state: InstanceState, policy: PolicySet) -> None:
        self._state = state
        self._policy = policy
        self._went = False  # whether KV had to go since room was last looked for

    def spill(self, short: int, *, behind: LiveRequest | None, now_ns: Ns) -> bool:
        """Take the blocks of the last in the queue; false where those of all ``behind`` a request are too few."""
        paused = [request for request in self._paused() if behind is None or self._follows(request, behind)]
        if sum(request.blocks for request in paused) < short:
            return False
        self._take(max(paused, key=self._place), now_ns)
        return True

    def look_ahead(self, now_ns: Ns, stopped: Collection[int]) -> None:
        """Keep room for newcomers, or use what is beyond it; ``stopped`` are those that ran until this step."""
        memory = self._state.memory
        if self._policy.swapping is None:
            return
        room = self._policy.swapping.room
        paused = sorted(self._paused(), key=self._place)
        while paused and memory.free < room and memory.host.available >= paused[-1].blocks:
            self._take(paused.pop(), now_ns)
        swapped = [request for request in self._state.stopped.values() if request.state is State.SWAPPED]
        went, self._went = self._went or any(request.id in stopped for request in swapped), False
        for request in () if went else sorted(swapped, key=self._place):
            if memory.free - memory.pledged - len(request.host_table) < room:
                return
            fetch(self._state, request, now_ns)

    def shuts_out(self) -> Deferral | None:
        """Why requests without KV do not come in."""
        host, rules = self._state.memory.host, self._policy.swapping
        free = host.total - host.held
        return Deferral(Defer.HOST_FULL, rules.host_low, free) if rules and free < rules.host_low else None

    def holders(self) -> list[LiveRequest]:
        """Those who wait with their KV, in queue order."""
        return sorted([*self._state.stopped.values(), *self._state.lodged.values()], key=self._place)

    def _paused(self) -> Iterator[LiveRequest]:
        return (request for request in self._state.stopped.values() if request.state is State.PAUSED)

    def _follows(self, request: LiveRequest, head: LiveRequest) -> bool:
        """Whether ``request`` stands behind ``head``; one that is passed over in this step may have left the queue."""
        return request in self._state.waiting and self._place(request) > self._place(head)

    def _place(self, request: LiveRequest) -> tuple[Any, ...]:
        return place_of(self._state.waiting, request)

    def _take(self, request: LiveRequest, now_ns: Ns) -> None:
        stop(self._state, self._policy, request, Stop(Preempt.NO_BLOCKS, now_ns))
        self._went = True
