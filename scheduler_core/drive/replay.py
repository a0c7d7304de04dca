"""An executor fed from a recorded run: same durations, same tokens; plans that differ are found at once."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.plan import StepPlan, StepResult
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of the recorded run: the digest of its plan, when planning began, and the answer."""

    digest: str
    planned_ns: Ns
    result: StepResult


class ReplayExecutor:
    """Answers each plan with the recorded result; the clock shows the recorded times.

    Several steps may be in flight, as in the recording: the next plan is made before the oldest result is read where it
    was so then. The first plan whose digest differs from the recording raises `ExecutorError` with both.
    """

    def __init__(self, steps: Iterable[RecordedStep]) -> None:
        self._steps = iter(steps)
        self._launched: deque[StepResult] = deque()
        self._next = next(self._steps, None)
        self._now: Ns = 0
        self._catch_up()  # what arrived before the recording planned its first step was taken up together then

    def now_ns(self) -> Ns:
        return self._now

    def open(self, request: PlannedRequest) -> None:
        return None

    def launch(self, plan: StepPlan) -> None:
        if self._next is None:
            raise ExecutorError(f"step {plan.id} is beyond the end of the recording")
        if plan.digest() != self._next.digest:
            raise ExecutorError(f"step {plan.id} differs: planned {plan.digest()}, recorded {self._next.digest}")
        self._launched.append(self._next.result)
        self._next = next(self._steps, None)
        self._catch_up()

    def wait(self, until_ns: Ns | None) -> StepResult | None:
        """The recorded answer of the oldest step in flight; with none, the clock moves on.

        Idle time ends when the recording planned its next step, even if that is after ``until_ns``: what arrived in
        between was taken up together then.
        """
        if not self._launched:
            self._catch_up()
            self._now = max(self._now, until_ns or 0)
            return None
        available = self._launched[0].available_ns
        if until_ns is not None and until_ns < available:
            self._now = max(self._now, until_ns)
            return None
        self._now = max(self._now, available)
        result = self._launched.popleft()
        self._catch_up()
        return result

    def close(self, request: int) -> None:
        return None

    def _catch_up(self) -> None:
        """The next plan is made now, unless the recording read a result first that is still to come."""
        if self._next is None or (self._launched and self._launched[0].available_ns <= self._next.planned_ns):
            return
        self._now = max(self._now, self._next.planned_ns)
