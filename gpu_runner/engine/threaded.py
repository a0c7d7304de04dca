"""Computing in a thread of its own on a CPU target, so that the host prepares the next step meanwhile.

PyTorch and the compiled kernels let go of the interpreter while they work. One worker takes batches and copies in the
order in which they were launched; on a device with streams the streams do the same.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from gpu_runner.engine.hostpool import Copied, Copying, HostPool, copies_blocks
from gpu_runner.engine.instance import InFlight, Stepper, Yield
from gpu_runner.engine.layout import FlatBatch
from scheduler_core.types.intervals import DEVICE, HOST, IntervalClass, Lane
from scheduler_core.types.plan import StepPlan
from scheduler_core.types.time import Ns


class Worker:
    """The thread that computes."""

    def __init__(self, threads: int) -> None:
        """``threads`` are those of the products, which PyTorch counts for each thread that starts them."""
        self._pool = ThreadPoolExecutor(1, "headway-compute", initializer=torch.set_num_threads, initargs=(threads,))

    def submit(self, work: Callable[[], Yield]) -> "Future[Yield]":
        """Do ``work`` after all that was submitted before."""
        return self._pool.submit(work)

    def submit_copies(self, work: Callable[[], tuple[Lane, ...]]) -> "Future[tuple[Lane, ...]]":
        """As `submit`, for copies."""
        return self._pool.submit(work)


@dataclass(frozen=True, slots=True)
class _Computing:
    future: "Future[Yield]"

    def ready(self) -> bool:
        return self.future.done()

    def collect(self) -> Yield:
        return self.future.result()


@dataclass(frozen=True, slots=True)
class _Moving:
    future: "Future[tuple[Lane, ...]]"

    def lanes(self) -> tuple[Lane, ...]:
        return self.future.result()


class ThreadedStepper:
    """Launches without waiting; batches run one after the other in the worker."""

    def __init__(self, inner: Stepper, worker: Worker) -> None:
        self._inner = inner
        self._worker = worker

    def launch(self, flat: FlatBatch, began: Ns) -> InFlight:
        submitted = time.perf_counter_ns()

        def compute() -> Yield:
            started = time.perf_counter_ns()
            result = self._inner.launch(flat, started).collect()
            ahead = (
                Lane(IntervalClass.INPUT_PREPARE, HOST, began, submitted),
                Lane(IntervalClass.STALLED, f"waiting for {DEVICE}", submitted, started),
            )
            return Yield(result.tokens, result.margins, (*ahead, *result.lanes))

        return _Computing(self._worker.submit(compute))


class ThreadedHostPool:
    """Copies of plans, in the worker's order."""

    def __init__(self, inner: HostPool, worker: Worker) -> None:
        self._inner = inner
        self._worker = worker

    @property
    def pool_bytes(self) -> int:
        return self._inner.pool_bytes

    def copy(self, plan: StepPlan) -> Copying:
        if not copies_blocks(plan):
            return Copied()
        return _Moving(self._worker.submit_copies(lambda: self._inner.copy(plan).lanes()))
