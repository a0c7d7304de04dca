"""An engine whose clock is CPU time, so that what else a shared machine does lengthens nothing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from gpu_runner.engine import executor, hostpool, instance
from scheduler_core.types.time import NS_PER_S, Ns


class CpuClock:
    """Stands for the module `time` in an engine of one thread: time passes as that computes, and waiting is over at
    once.
    """

    def __init__(self) -> None:
        self._waited: Ns = 0

    def perf_counter_ns(self) -> Ns:
        """CPU time of the calling thread and all that was waited for."""
        return time.thread_time_ns() + self._waited

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` have passed, a nanosecond at least."""
        self._waited += max(1, round(seconds * NS_PER_S))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextmanager
def on_cpu_time() -> Iterator[None]:
    """Engines made here on one thread go by CPU time."""
    clock = CpuClock()
    with (
        patch.object(executor, "time", clock),
        patch.object(instance, "time", clock),
        patch.object(hostpool, "time", clock),
    ):
        yield
