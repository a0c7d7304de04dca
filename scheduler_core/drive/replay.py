"""An executor fed from a recorded run: same durations, same tokens; plans that differ are found at once."""

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

    The first plan whose digest differs from the recording raises `ExecutorError` with both.
    """

    def __init__(self, steps: Iterable[RecordedStep]) -> None:
        self._steps = iter(steps)
        self._launched: StepResult | None = None
        self._next = next(self._steps, None)
        # What arrived before the recording planned its first step was taken up together then.
        self._now: Ns = self._next.planned_ns if self._next is not None else 0

    def now_ns(self) -> Ns:
        return self._now

    def open(self, request: PlannedRequest) -> None:
        return None

    def launch(self, plan: StepPlan) -> None:
        if self._next is None:
            raise ExecutorError(f"step {plan.id} is beyond the end of the recording")
        if plan.digest() != self._next.digest:
            raise ExecutorError(f"step {plan.id} differs: planned {plan.digest()}, recorded {self._next.digest}")
        self._launched = self._next.result
        self._next = next(self._steps, None)

    def wait(self, until_ns: Ns | None) -> StepResult | None:
        """The recorded answer of the launched step; with none launched, the clock moves on.

        Idle time ends when the recording planned its next step, even if that is after ``until_ns``: what arrived in
        between was taken up together then.
        """
        if self._launched is None:
            planned = self._next.planned_ns if self._next is not None else self._now
            self._now = max(self._now, planned, until_ns or 0)
            return None
        result = self._launched
        if until_ns is not None and until_ns < result.available_ns:
            self._now = max(self._now, until_ns)
            return None
        self._launched = None
        self._now = self._next.planned_ns if self._next is not None else result.available_ns
        return result

    def close(self, request: int) -> None:
        return None
