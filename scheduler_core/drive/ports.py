"""What the driver needs from the outside. The simulator, the replayer and the torch engine each provide it."""

from typing import Protocol

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.plan import StepPlan, StepResult
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns


class Executor(Protocol):
    """Executes step plans and owns the run's clock.

    Owning both makes one driver serve two worlds: a simulator jumps its clock to the next completion, an engine lets
    real time pass. Steps complete in launch order. The executor alone knows the true output lengths.
    """

    def now_ns(self) -> Ns:
        """Time since the start of the run."""

    def open(self, request: PlannedRequest) -> None:
        """Make a request known before its first grant."""

    def launch(self, plan: StepPlan) -> None:
        """Start one step; returns without waiting where the device allows it."""

    def wait(self, until_ns: Ns | None) -> StepResult | None:
        """The next completed step, or None once ``until_ns`` is reached; ``None`` means wait for a completion.

        With nothing launched, waits (or jumps) until ``until_ns``.
        """

    def close(self, request: int) -> None:
        """Forget a request that has ended."""


class ClusterExecutor(Executor, Protocol):
    """One of several executors that share what they know of answers: one goes on elsewhere where it was left."""

    def resume(self, request: int, emitted: int) -> None:
        """A request goes on after ``emitted`` tokens, whatever a step that was lost had made of it."""


class Sink(Protocol):
    """Receives evidence records in order; must not call back into the driver."""

    def write(self, record: Record) -> None:
        """Take one record."""


class Stop(Protocol):
    """Asked by the driver between steps; true ends the run early with every open request ``cancelled``."""

    def __call__(self) -> bool: ...
