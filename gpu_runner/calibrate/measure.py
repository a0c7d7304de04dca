"""Runs the steps of a point on an engine and times them."""

from collections.abc import Iterable, Iterator
from itertools import count

from gpu_runner.calibrate.grid import WARMING_STEPS, Point
from gpu_runner.calibrate.measured import Measured
from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.intervals import COMPUTE
from scheduler_core.types.plan import Grant, Phase, StepPlan, StepResult
from scheduler_core.types.shape import shape_of
from scheduler_core.types.time import Ns


class Bench:
    """Plays hand-made plans on a loaded and started executor.

    Requests begin with their context declared a prefix hit, so that no prompt has to be computed before a decode can
    be timed: attention costs the same whatever the pages hold.
    """

    def __init__(self, executor: TorchExecutor) -> None:
        self._executor = executor
        self._block_size = executor.settings.block_size
        self._requests = count()
        self._plans = count()

    def measure(self, point: Point, *, number: int, round_: int) -> list[Measured]:
        """Time each step of ``point`` after some that warm the caches; `ExecutorError` when the engine fails a step."""
        free = iter(range(self._executor.settings.kv_blocks))
        decoding = [self._resident(point.context, point.steps + WARMING_STEPS, free) for _ in range(point.batch)]
        measured: list[Measured] = []
        opened = [grant.request for grant in decoding]
        for step in range(WARMING_STEPS if decoding else 0):
            warming = [self._next(grant, step) if step else grant for grant in decoding]
            self._step(StepPlan(next(self._plans), tuple(warming)))
        for step in range(point.steps):
            grants = [self._next(grant, WARMING_STEPS + step) for grant in decoding]
            if point.chunk:
                grants.append(self._chunk(point, free))
                opened.append(grants[-1].request)
            plan = StepPlan(next(self._plans), tuple(grants))
            measured.append(Measured(shape_of(plan), self._step(plan), number, round_))
        for request in opened:
            self._executor.close(request)
        return measured

    def after_idle(self, point: Point, idle_ns: Ns) -> Ns:
        """Duration of one step of ``point`` when nothing ran for ``idle_ns`` before it."""
        free = iter(range(self._executor.settings.kv_blocks))
        grants = [self._resident(point.context, 1, free) for _ in range(point.batch)]
        if point.chunk:
            grants.append(self._chunk(point, free))
        if idle_ns:
            self._executor.wait(self._executor.now_ns() + idle_ns)
        result = self._run(StepPlan(next(self._plans), tuple(grants)))
        for grant in grants:
            self._executor.close(grant.request)
        return result.available_ns - result.started_ns

    def _open(self, prompt: int, output: int) -> int:
        request = next(self._requests)
        self._executor.open(PlannedRequest(request, 0, prompt, output, output, seed=request))
        return request

    def _resident(self, context: int, steps: int, free: Iterator[int]) -> Grant:
        request = self._open(context, steps)
        blocks = tuple(next(free) for _ in range(-(-(context + steps) // self._block_size)))
        return Grant(request, 0, context - 1, 1, blocks, True, Phase.DECODE, context - 1)

    def _next(self, first: Grant, step: int) -> Grant:
        return Grant(first.request, 0, first.start + step, 1, (), True, Phase.DECODE)

    def _chunk(self, point: Point, free: Iterator[int]) -> Grant:
        request = self._open(point.history + point.chunk, 1)
        blocks = tuple(next(free) for _ in range(-(-(point.history + point.chunk) // self._block_size)))
        return Grant(request, 0, point.history, point.chunk, blocks, True, Phase.PREFILL, point.history)

    def _step(self, plan: StepPlan) -> Ns:
        return computing_ns(self._run(plan).lanes)

    def _run(self, plan: StepPlan) -> StepResult:
        self._executor.launch(plan)
        result = self._executor.wait(None)
        if result is None or result.failure is not None:
            raise ExecutorError(f"a calibration step failed: {result.failure if result else 'no result'}")
        return result


def computing_ns(lanes: Iterable[tuple[str, str, Ns, Ns]]) -> Ns:
    """Time of the forward among the lanes of a step."""
    return sum(end - start for kind, _resource, start, end in lanes if kind == COMPUTE)
