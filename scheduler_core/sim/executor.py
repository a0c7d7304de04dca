"""Executes plans on a simulated clock."""

from scheduler_core.sim.cost import StepCost
from scheduler_core.spec.target import Profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.intervals import COMPUTE, DEVICE, HOST, IntervalClass, Lane
from scheduler_core.types.plan import Grant, GrantResult, StepPlan, StepResult
from scheduler_core.types.shape import shape_of
from scheduler_core.types.time import Ns

_NOTHING = GrantResult(None)
_TOKEN = GrantResult(None)
_LAST = GrantResult(None, last=True)


class TrueOutputs:
    """How long each answer really is and how far it has come, which executors alone may know.

    The executors of a cluster share one: an answer goes on in another instance where it was left.
    """

    __slots__ = ("_emitted", "_lengths")

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}
        self._emitted: dict[int, int] = {}

    def open(self, request: PlannedRequest) -> None:
        """Make a request known."""
        self._lengths[request.index] = request.output_tokens
        self._emitted[request.index] = 0

    def close(self, request: int) -> None:
        """Forget it."""
        self._lengths.pop(request, None)
        self._emitted.pop(request, None)

    def answer(self, grant: Grant) -> GrantResult:
        """What a grant yields; a token that it samples counts as emitted."""
        if not grant.samples:
            return _NOTHING
        emitted = self._emitted[grant.request] + 1
        self._emitted[grant.request] = emitted
        return _LAST if emitted >= self._lengths[grant.request] else _TOKEN


class SimulatedExecutor:
    """Jumps its clock to the next completion. It alone knows how long each answer really is.

    Its tokens have no ids. ``noise_seed`` None makes durations exact.
    """

    def __init__(self, *, profile: Profile, noise_seed: int | None = None, outputs: TrueOutputs | None = None) -> None:
        self._cost = StepCost(profile, noise_seed)
        self._now: Ns = 0
        self._ended: Ns = 0
        self._launched: StepResult | None = None
        self._outputs = outputs or TrueOutputs()

    def now_ns(self) -> Ns:
        return self._now

    def open(self, request: PlannedRequest) -> None:
        self._outputs.open(request)

    def launch(self, plan: StepPlan) -> None:
        if self._launched is not None:
            raise ExecutorError(f"step {plan.id} launched while step {self._launched.plan_id} runs")
        shape = shape_of(plan)
        end = self._now + self._cost.step_ns(shape, plan.id) + self._cost.wake_ns(self._now - self._ended)
        began = min(self._now + self._cost.host_ns(shape), end)
        answers = tuple([self._outputs.answer(grant) for grant in plan.grants])
        lanes: tuple[Lane, ...] = (Lane(COMPUTE, DEVICE, began, end),)
        if began > self._now:
            lanes = (Lane(IntervalClass.INPUT_PREPARE, HOST, self._now, began), *lanes)
        self._launched = StepResult(plan.id, answers, lanes, self._now, end)

    def wait(self, until_ns: Ns | None) -> StepResult | None:
        result = self._launched
        if result is not None and (until_ns is None or result.available_ns <= until_ns):
            self._launched = None
            self._now = self._ended = result.available_ns
            return result
        if until_ns is None:
            raise ExecutorError("asked to wait for a step, but none was launched")
        self._now = max(self._now, until_ns)
        return None

    def close(self, request: int) -> None:
        self._outputs.close(request)
