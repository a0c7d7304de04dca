"""The one loop: deliver what is due, plan, launch, wait, complete. Simulated and real executors differ only in time."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from scheduler_core.drive.agenda import Agenda
from scheduler_core.drive.cuts import ARRIVE, CacheResetAt, cut, displace, reset
from scheduler_core.drive.evidence import Evidence
from scheduler_core.drive.fork import Switch
from scheduler_core.drive.ports import Executor, Sink, Stop
from scheduler_core.drive.writing import arrived_record, finished_record, step_record
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.plan import Completed, Ended, Planned
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.foresight import Foresight
from scheduler_core.types.patience import Patience
from scheduler_core.types.plan import StepResult
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import Record, RunFinished, Tie
from scheduler_core.types.time import Ns

FAILURES_IN_A_ROW = 3


class Schedulable(Protocol):
    """What the driver asks of an instance; see `scheduler_core.sched.instance.Instance`."""

    def submit(self, spec: RequestSpec, now_ns: Ns) -> Ended | None: ...
    def close_arrivals(self) -> None: ...
    def plan(self, now_ns: Ns) -> Planned | None: ...
    def complete(self, result: StepResult) -> Completed: ...
    def abort(self, request: int, *, outcome: Outcome = ..., reason: str = ...) -> Ended | None: ...
    def started(self, request: int) -> bool: ...
    def displaced(self) -> int | None: ...
    def reset_cache(self, at_ns: Ns, *, force: bool = ...) -> None: ...
    def next_wakeup(self, now_ns: Ns) -> Ns | None: ...
    def open_requests(self) -> list[int]: ...
    def take_records(self) -> list[Record]: ...
    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DriveReport:
    """How a run ended. ``outcomes`` counts requests and adds up to those of the plan when ``complete``."""

    complete: bool
    reason: str
    steps: int
    outcomes: dict[str, int]
    end_ns: Ns
    laws_checked: int
    plan_digests: tuple[str, ...]


@dataclass(slots=True)
class _InFlight:
    """A launched step, and the records of its planning that wait for the steps before it.

    The evidence tells steps in the order of their results: what was decided for a step comes right before it.
    """

    planned: Planned
    held: list[Record]


@dataclass(kw_only=True)
class Driver:
    """Plays planned requests through an instance on an executor, and writes the evidence.

    ``depth`` steps may be in flight at once, which instance and executor must allow.

    ``cancels`` are (request index, time) at which its client gives up, beside those of the plan. ``patience`` has the
    time limits of tiers, ``foresight`` what a study announces of output lengths, ``resets`` those of the prefix cache.
    ``prefix_block_size`` is that of the arrival plan. The laws are checked every ``law_interval`` steps and at the end.
    With ``keep_digests`` the report carries every plan's digest, for comparing two runs step by step. ``switch``
    changes the rules at a moment.
    """

    instance: Schedulable
    requests: Sequence[PlannedRequest]
    executor: Executor
    sink: Sink
    stop: Stop
    on_progress: Callable[[int, int], None] | None = None
    prefix_block_size: int = 16
    cancels: Iterable[tuple[int, Ns]] = ()
    patience: Mapping[str, Patience] = field(default_factory=dict)
    foresight: Foresight | None = None
    resets: Iterable[CacheResetAt] = ()
    law_interval: int = 64
    keep_digests: bool = False
    depth: int = 1
    switch: Switch | None = None
    _agenda: Agenda = field(init=False)
    _evidence: Evidence = field(init=False)
    _tokens: dict[int, list[int]] = field(init=False, default_factory=dict)
    _outcomes: dict[str, int] = field(init=False, default_factory=dict)
    _digests: list[str] = field(init=False, default_factory=list)
    _steps: int = field(init=False, default=0)
    _laws: int = field(init=False, default=0)
    _failures: int = field(init=False, default=0)
    _total: int = field(init=False, default=0)
    _turn_ns: Ns | None = field(init=False, default=None)
    _flight: deque[_InFlight] = field(init=False, default_factory=deque)
    _held: list[Record] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._agenda = Agenda(self.requests, self.cancels, self.patience, self.resets)
        self._total = len(self.requests)
        self._evidence = Evidence(self.sink)

    def run(self) -> DriveReport:
        """Play to the end: all requests ended, stopped from outside, or the executor failed for good.

        Raises:
            LawError: a law of the core is broken; a fault of the program, never of the workload.
            ExecutorError: the executor answered something impossible.
        """
        try:
            return self._serve()
        finally:
            self._evidence.flush()

    def _serve(self) -> DriveReport:
        while self._ended < self._total:
            if self.stop():
                return self._end(complete=False, reason="stopped", outcome=Outcome.CANCELLED)
            if self._failures >= FAILURES_IN_A_ROW:
                reason = f"{self._failures} steps failed in a row"
                return self._end(complete=False, reason=reason, outcome=Outcome.FAILED)
            now = self._up_to_now()
            if self.switch is not None and now >= self.switch.at_ns:
                self.switch.change()
                self.switch = None
            if len(self._flight) < self.depth and self._launch(now) and len(self._flight) < self.depth:
                continue
            if self._flight:
                self._turn()
            else:
                self._idle(now)
        return self._end(complete=True, reason="every request ended", outcome=Outcome.CANCELLED)

    # --- one turn ----------------------------------------------------------------------------------------------

    def _launch(self, now_ns: Ns) -> bool:
        """Plan a step and start it; false when there is nothing to do now."""
        planned = self.instance.plan(now_ns)
        self._held += self.instance.take_records()
        if not self._flight:
            self._write_all(self._held)
            self._held = []
        if planned is None:
            return False
        if self.keep_digests:
            self._digests.append(planned.plan.digest())
        self.executor.launch(planned.plan)
        self._flight.append(_InFlight(planned, self._held))
        self._held = []
        return True

    def _turn(self) -> None:
        """Wait for the oldest step, or with room for another one for the next event."""
        result = self._await()
        if result is None:
            return
        # A cancel that came while the step ran is not undone by its end.
        self._deliver(min(result.available_ns, self.executor.now_ns()))
        step = self._flight.popleft()
        completed = self.instance.complete(result)
        self._steps += 1
        self._failures = self._failures + 1 if result.failure is not None else 0
        self._write_all(step.held)
        self._evidence.make(partial(step_record, step.planned, result, completed, host_since_ns=self._turn_ns))
        self._turn_ns = result.available_ns
        self._collect(step.planned, result, completed)
        if self._steps % self.law_interval == 0:
            self._check()

    def _await(self) -> StepResult | None:
        while True:
            due, now = self._agenda.next_ns(), self.executor.now_ns()
            result = self.executor.wait(now if due is None else min(due, now))
            self._evidence.flush(hold=result is None)
            result = self.executor.wait(due) if result is None else result
            if result is not None:
                return result
            if due is None:
                raise ExecutorError("the executor returned from waiting for a step without one")
            self._deliver(max(due, self.executor.now_ns()))
            if len(self._flight) < self.depth:
                return None

    def _idle(self, now_ns: Ns) -> None:
        self._turn_ns = None
        self._evidence.flush()
        switch_ns = None if self.switch is None else self.switch.at_ns
        due = (self._agenda.next_ns(), self.instance.next_wakeup(now_ns), switch_ns)
        times = [at for at in due if at is not None]
        if not times and self._ended < self._total:
            raise ExecutorError(f"{self._total - self._ended} requests are open, but nothing is due any more")
        if times and self.executor.wait(min(times)) is not None:
            raise ExecutorError("a step came back, but none was launched")

    def _up_to_now(self) -> Ns:
        """Deliver what is due; the time by which nothing more is, so that a replay at that time delivers the same."""
        now = self.executor.now_ns()
        while (due := self._agenda.next_ns()) is not None and due <= now:
            self._deliver(now)
            now = self.executor.now_ns()
        if not self._agenda.undelivered:
            self.instance.close_arrivals()
        return now

    def _deliver(self, now_ns: Ns) -> None:
        while (due := self._agenda.take_due(now_ns)) is not None:
            if due.kind == ARRIVE:
                self._arrive(self._agenda.requests[due.request], due.at_ns, now_ns)
            elif not reset(self.instance, due):
                ended = cut(self.instance, due)
                if ended is not None:
                    self._write_ended(ended, now_ns)
        if not self._agenda.undelivered:
            self.instance.close_arrivals()

    def _arrive(self, planned: PlannedRequest, at_ns: Ns, seen_ns: Ns) -> None:
        self._evidence.write(arrived_record(planned, at_ns, seen_ns))
        self.executor.open(planned)
        foreseen = None if self.foresight is None else self.foresight.of(planned)
        spec = RequestSpec.from_planned(
            planned, arrival_ns=at_ns, prefix_block_size=self.prefix_block_size, foreseen=foreseen
        )
        refused = self.instance.submit(spec, seen_ns)
        if refused is not None:
            self._write_ended(refused, seen_ns)
        else:
            self._agenda.arrived(planned.index, at_ns)
            dropped = displace(self.instance)
            if dropped is not None:
                self._write_ended(dropped, seen_ns)

    # --- evidence ----------------------------------------------------------------------------------------------

    def _collect(self, planned: Planned, result: StepResult, completed: Completed) -> None:
        for number, request in completed.emitted:
            answer = result.grants[number]
            tokens = self._tokens.setdefault(request, [])
            if answer.token is not None:
                tokens.append(answer.token)
            if answer.tie_margin is not None:
                self._evidence.write(Tie(request, len(tokens) - 1, answer.tie_margin))
        for ended in completed.ended:
            self._write_ended(ended, result.available_ns)

    def _write_ended(self, ended: Ended, at_ns: Ns) -> None:
        if self._flight:
            self._write_held(ended.request)
        tokens = self._tokens.pop(ended.request, None)
        self._evidence.write(finished_record(ended, at_ns, tokens))
        self._outcomes[ended.outcome.value] = self._outcomes.get(ended.outcome.value, 0) + 1
        self.executor.close(ended.request)
        self._agenda.ended(ended.request, at_ns)
        if self.on_progress is not None:
            self.on_progress(self._ended, self._total)

    def _write_held(self, request: int) -> None:
        """What steps in flight hold of a request that ends before them."""
        for held in (*(step.held for step in self._flight), self._held):
            own = [record for record in held if getattr(record, "request", None) == request]
            self._write_all(own)
            held[:] = [record for record in held if record not in own]

    def _write_all(self, records: list[Record]) -> None:
        for record in records:
            self._evidence.write(record)

    @property
    def _ended(self) -> int:
        return sum(self._outcomes.values())

    def _check(self) -> None:
        self.instance.check()
        self._laws += 1

    def _end(self, *, complete: bool, reason: str, outcome: Outcome) -> DriveReport:
        while self._flight:
            self._turn()
        now = self.executor.now_ns()
        for request in self.instance.open_requests():
            ended = self.instance.abort(request, outcome=outcome, reason=reason)
            if ended is not None:
                self._write_ended(ended, now)
        self._write_all([*self._held, *self.instance.take_records()])
        self._check()
        self._evidence.write(RunFinished(now, complete, reason, self._steps, self._laws))
        digests = tuple(self._digests)
        return DriveReport(complete, reason, self._steps, dict(self._outcomes), now, self._laws, digests)
