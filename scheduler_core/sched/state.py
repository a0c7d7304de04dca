"""The mutable state of an instance: who is where. Only the planner, commit and control modules change it."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler_core.request.live import APART, LiveRequest
from scheduler_core.sched.aging import Timed
from scheduler_core.sched.cohort import Cohort
from scheduler_core.sched.memory import Memory
from scheduler_core.sched.plan import FusedStep, Planned
from scheduler_core.sched.waiting import Queue, WaitingQueue
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns


class Reset(NamedTuple):
    """A reset of the prefix cache asked for at ``at_ns``; ``force`` takes the blocks of everybody first (V-26)."""

    at_ns: Ns
    force: bool


@dataclass(slots=True)
class InstanceState:
    """Requests by place, the pool, steps in flight, and records not yet taken.

    ``running`` is in order of admission; ``apart`` are those of them that are no members of the ``cohort``, in the same
    order. ``aged`` is ``waiting`` where its head may change by itself. ``stopped`` have their KV, on the device or in
    the host (`sched.stopping`); with ``queues_stopped`` they are waiting, too. ``held`` are finished requests whose
    slot and blocks stay taken until their batch ends. ``parked`` and ``lodged`` are those of `sched.moving`; the latter
    are waiting, too. ``fused_step`` is a fused step while events are delivered during it. ``reset`` is a reset of the
    cache that waits for the steps in flight. ``pinned`` are fences that hold blocks until something outside is over.
    ``deferred`` is the last reported (request, reason): a record is written only on change.
    """

    memory: Memory
    cohort: Cohort
    plan_on_promises: bool = False
    queues_stopped: bool = False
    keeps_records: bool = True
    requests: dict[int, LiveRequest] = field(default_factory=dict)
    aged: Timed | None = None
    waiting: Queue = field(default_factory=WaitingQueue)
    running: dict[int, LiveRequest] = field(default_factory=dict)
    apart: dict[int, LiveRequest] = field(default_factory=dict)
    stopped: dict[int, LiveRequest] = field(default_factory=dict)
    held: list[LiveRequest] = field(default_factory=list)
    parked: dict[int, LiveRequest] = field(default_factory=dict)
    lodged: dict[int, LiveRequest] = field(default_factory=dict)
    in_flight: deque[Planned] = field(default_factory=deque)
    released: list[int] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    deferred: tuple[int, str] | None = None
    arrivals_over: bool = False
    next_seq: int = 0
    next_run: int = 0
    next_step: int = 0
    fused_step: FusedStep | None = None
    reset: Reset | None = None
    pinned: set[int] = field(default_factory=set)

    @property
    def queued(self) -> int:
        """Requests that wait without having been stopped with their KV."""
        return len(self.waiting) - (len(self.stopped) if self.queues_stopped else 0)

    def fence(self) -> int | None:
        """The newest step in flight, behind which released blocks must wait; None when nothing is."""
        if self.in_flight:
            return self.in_flight[-1].plan.id
        return None if self.fused_step is None else self.fused_step.id

    def leave_running(self, request: LiveRequest, *, granted: bool = False) -> None:
        """Take ``request`` out of the running order; see `Cohort.leave` for ``granted``."""
        del self.running[request.id]
        if request.joined == APART:
            del self.apart[request.id]
        else:
            self.cohort.leave(request, granted=granted)
            self.memory.settle(request)

    def disband(self) -> None:
        """Make every member of the cohort an ordinary running request again. O(running)."""
        for request in list(self.cohort):
            self.cohort.leave(request)
            self.memory.settle(request)
        self.apart = dict(self.running)
