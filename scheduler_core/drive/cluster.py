"""The loop over a modelled cluster: every instance has an executor with its own clock, events come in one order."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler_core.cluster.cluster import Cluster
from scheduler_core.drive.agenda import Agenda
from scheduler_core.drive.cuts import ARRIVE, CacheResetAt, Due, cut, reset
from scheduler_core.drive.driver import DriveReport
from scheduler_core.drive.ports import ClusterExecutor, Sink, Stop
from scheduler_core.drive.writing import arrived_record, finished_record, step_record
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.plan import Ended, Planned
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.cluster_records import Routed
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.foresight import Foresight
from scheduler_core.types.patience import Patience
from scheduler_core.types.plan import StepResult
from scheduler_core.types.records import CacheReset, RunFinished
from scheduler_core.types.time import NEVER, Ns


@dataclass(slots=True)
class _Lane:
    """One instance in the loop.

    ``running`` is its step under way, ``wakes_ns`` when it asked to be planned again; ``steps`` it has made.
    """

    executor: ClusterExecutor
    running: tuple[Planned, StepResult] | None = None
    wakes_ns: Ns | None = None
    steps: int = 0


@dataclass(kw_only=True)
class ClusterDriver:
    """Plays planned requests through a cluster and writes the evidence; each figure as `Driver` has it for one.

    ``executors`` are those of the members, by index. They must know at launch when a step will end, as simulated ones
    do: steps of several instances run side by side, and the earliest end is the next event. At one instant arrivals
    and cancels come first, then steps in order of instance, then planning, as with one instance. The laws of an
    instance are checked every ``law_interval`` steps of its own, those of all at the end.
    """

    cluster: Cluster
    requests: Sequence[PlannedRequest]
    executors: Sequence[ClusterExecutor]
    sink: Sink
    stop: Stop
    on_progress: Callable[[int, int], None] | None = None
    prefix_block_size: int = 16
    cancels: Iterable[tuple[int, Ns]] = ()
    patience: Mapping[str, Patience] = field(default_factory=dict)
    foresight: Foresight | None = None
    resets: Iterable[CacheResetAt] = ()
    law_interval: int = 64
    _agenda: Agenda = field(init=False)
    _lanes: list[_Lane] = field(init=False)
    _events: list[tuple[Ns, int]] = field(init=False, default_factory=list)
    _idle: set[int] = field(init=False, default_factory=set)
    _outcomes: dict[str, int] = field(init=False, default_factory=dict)
    _now: Ns = field(init=False, default=0)
    _running: int = field(init=False, default=0)
    _steps: int = field(init=False, default=0)
    _laws: int = field(init=False, default=0)
    _closed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._agenda = Agenda(self.requests, self.cancels, self.patience, self.resets)
        self._lanes = [_Lane(executor) for executor in self.executors]

    def run(self) -> DriveReport:
        """Play to the end: all requests ended, or stopped from outside.

        Raises:
            LawError: a law of the core is broken; a fault of the program, never of the workload.
            ExecutorError: an executor answered something impossible.
        """
        total = len(self.requests)
        self._write_decisions()
        while self._ended < total or self._running:
            if self.stop():
                return self._end(complete=False, reason="stopped")
            at = self._next_ns()
            if at == NEVER:
                raise ExecutorError(f"{total - self._ended} requests are open, but nothing is due any more")
            self._now = max(self._now, at)
            self.cluster.advance(self._now)
            self._lose_steps()
            self._write_decisions()
            touched = self._deliver() | self._complete_due() | self._settle()
            touched |= self._deliver()  # an end may let another turn begin
            for number in sorted(touched):
                if self._lanes[number].running is None and self.cluster.serves(number):
                    self._plan(number)
        return self._end(complete=True, reason="every request ended")

    # --- one instant -------------------------------------------------------------------------------------------

    def _next_ns(self) -> Ns:
        due_ns = self._agenda.next_ns()
        at_ns = min(NEVER if due_ns is None else due_ns, self.cluster.next_ns())
        return min(at_ns, self._events[0][0]) if self._events else at_ns

    def _deliver(self) -> set[int]:
        """Take in what is due; the members it concerns."""
        touched: set[int] = set()
        while (due := self._agenda.take_due(self._now)) is not None:
            if reset(self.cluster, due):
                touched.update(range(len(self._lanes)))
                continue
            member = self._arrive(due) if due.kind == ARRIVE else self._cut(due)
            if member is not None:
                touched.add(member)
        if not self._agenda.undelivered and not self._closed:
            self._closed = True
            self.cluster.close_arrivals()
            touched.update(range(len(self._lanes)))  # one that waits for a full batch need wait no more
        return touched

    def _arrive(self, due: Due) -> int:
        planned, now = self._agenda.requests[due.request], self._now
        self.sink.write(arrived_record(planned, due.at_ns, now))
        foreseen = None if self.foresight is None else self.foresight.of(planned)
        spec = RequestSpec.from_planned(
            planned, arrival_ns=due.at_ns, prefix_block_size=self.prefix_block_size, foreseen=foreseen
        )
        placed = self.cluster.submit(spec, now)
        choice = placed.choice
        self.sink.write(Routed(now, spec.id, choice.instance, choice.score, choice.next_best))
        self._lanes[choice.instance].executor.open(planned)
        if placed.refused is not None:
            self._write_ended(choice.instance, placed.refused)
        else:
            self._agenda.arrived(planned.index, due.at_ns)
        if placed.displaced is not None:
            self._write_ended(choice.instance, placed.displaced)
        return choice.instance

    def _cut(self, due: Due) -> int | None:
        member = self.cluster.member_of(due.request)
        ended = cut(self.cluster, due)
        if member is not None and ended is not None:
            self._write_ended(member, ended)
        return member

    def _complete_due(self) -> set[int]:
        """Complete the steps that end now, and wake who asked for it; the members concerned."""
        touched: set[int] = set()
        while self._events and self._events[0][0] <= self._now:
            number = heapq.heappop(self._events)[1]
            touched.add(number)
            running = self._lanes[number].running
            if running is not None and running[1].available_ns <= self._now:
                self._complete(number, *running)
        return touched

    def _complete(self, number: int, planned: Planned, result: StepResult) -> None:
        lane = self._lanes[number]
        lane.running = None
        self._running -= 1
        completed = self.cluster.members[number].instance.complete(result)
        completed = self.cluster.completed(number, planned, completed, self._now)
        self._steps += 1
        self.sink.write(step_record(planned, result, completed, instance=number))
        for ended in completed.ended:
            self._write_ended(number, ended)
        lane.steps += 1
        if lane.steps % self.law_interval == 0:
            self.cluster.check_member(number)
            self._laws += 1

    def _lose_steps(self) -> None:
        """Steps of instances that died never come back."""
        for number in self.cluster.take_fallen():
            if self._lanes[number].running is not None:
                self._lanes[number].running = None
                self._running -= 1

    def _settle(self) -> set[int]:
        """Let requests on their way go on; the members concerned."""
        effects = self.cluster.settle(self._now)
        self._write_decisions()
        for request, emitted in effects.resumed:
            self.executors[0].resume(request, emitted)
        for number, ended in effects.ended:
            self._write_ended(number, ended)
        return effects.touched

    def _plan(self, number: int) -> None:
        lane, instance = self._lanes[number], self.cluster.members[number].instance
        planned = instance.plan(self._now)
        for record in instance.take_records():
            self.sink.write(replace(record, instance=number) if isinstance(record, CacheReset) else record)
        if planned is None:
            wakes = instance.next_wakeup(self._now)
            if wakes is not None and wakes != lane.wakes_ns:
                lane.wakes_ns = wakes
                heapq.heappush(self._events, (wakes, number))
            return
        lane.executor.wait(self._now)  # an idle executor's clock moves on to the present
        lane.executor.launch(planned.plan)
        result = lane.executor.wait(None)
        if result is None:
            raise ExecutorError("an executor of a cluster must tell at launch when its step ends")
        lane.running = (planned, result)
        self.cluster.launched(number, planned.plan, result.lanes)
        self._running += 1
        heapq.heappush(self._events, (result.available_ns, number))

    def _write_decisions(self) -> None:
        for record in self.cluster.take_records():
            self.sink.write(record)

    # --- evidence ----------------------------------------------------------------------------------------------

    def _write_ended(self, number: int, ended: Ended) -> None:
        self.sink.write(finished_record(ended, self._now, None))
        self._outcomes[ended.outcome.value] = self._outcomes.get(ended.outcome.value, 0) + 1
        self._lanes[number].executor.close(ended.request)
        self._agenda.ended(ended.request, self._now)
        if self.on_progress is not None:
            self.on_progress(self._ended, len(self.requests))

    @property
    def _ended(self) -> int:
        return sum(self._outcomes.values())

    def _check(self) -> None:
        self.cluster.check()
        self._laws += 1

    def _end(self, *, complete: bool, reason: str) -> DriveReport:
        for request in self.cluster.open_requests():
            member = self.cluster.member_of(request)
            ended = self.cluster.abort(request, reason=reason)
            if member is not None and ended is not None:
                self._write_ended(member, ended)
        self._check()
        self.sink.write(RunFinished(self._now, complete, reason, self._steps, self._laws))
        return DriveReport(complete, reason, self._steps, dict(self._outcomes), self._now, self._laws, ())
