"""The view of an instance that policies are given, over its state."""

from collections.abc import Iterable

from scheduler_core.sched.state import InstanceState
from scheduler_core.sched.view import RequestView
from scheduler_core.types.time import Ns


class StateView:
    """`scheduler_core.sched.view.View` over the live state: nothing is copied, whoever plans sets time and budget."""

    __slots__ = ("_state", "budget_left", "decodes", "drafted", "now_ns")

    def __init__(self, state: InstanceState, now_ns: Ns, budget_left: int) -> None:
        self._state = state
        self.now_ns = now_ns
        self.budget_left = budget_left
        self.decodes = self.drafted = 0

    @property
    def free_blocks(self) -> int:
        return self._state.memory.free

    @property
    def total_blocks(self) -> int:
        return self._state.memory.total

    @property
    def pledged_blocks(self) -> int:
        return self._state.memory.pledged

    @property
    def running(self) -> int:
        return len(self._state.running) + len(self._state.held)

    @property
    def waiting(self) -> int:
        return self._state.queued

    @property
    def arrivals_over(self) -> bool:
        return self._state.arrivals_over

    @property
    def prefilling(self) -> bool:
        return any(request.prefilling for request in self._state.apart.values())

    def running_requests(self) -> Iterable[RequestView]:
        return tuple(self._state.running.values())

    def head(self) -> RequestView | None:
        return self._state.waiting.head()
