"""What the client itself costs: its CPU, how late its event loop runs, and how it is scheduled."""

import asyncio
import time

from gpu_runner.server.client.realtime import in_real_time
from scheduler_core.types.quantile import quantile
from scheduler_core.types.time import NS_PER_S, Ns

BEAT_S = 0.02
BUSY_WINDOW_S = 1.0


class LoopWatch:
    """Measures the loop's lag every `BEAT_S`, and the largest share of a core used in any `BUSY_WINDOW_S`."""

    def __init__(self) -> None:
        self.lags: list[Ns] = []
        self.busiest_share = 0.0
        self._cpu = time.process_time()
        self._wall = time.monotonic()
        self._began_cpu, self._began_wall = self._cpu, self._wall
        self._began_in_real_time = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._cpu = self._began_cpu = time.process_time()
        self._wall = self._began_wall = time.monotonic()
        self._began_in_real_time = in_real_time()
        self._task = asyncio.create_task(self._beat())

    def stop(self) -> None:
        """Stop measuring."""
        if self._task is not None:
            self._task.cancel()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process since the start."""
        return time.process_time() - self._began_cpu

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_wall

    @property
    def real_time(self) -> bool:
        """Whether this process has been scheduled in real time since the start."""
        return self._began_in_real_time and in_real_time()

    def lag_ns(self, share: float) -> Ns:
        """A quantile of the loop's lag."""
        return round(quantile(sorted(self.lags), share)) if self.lags else 0

    async def _beat(self) -> None:
        while True:
            due = time.monotonic_ns() + round(BEAT_S * NS_PER_S)
            await asyncio.sleep(BEAT_S)
            self.lags.append(max(0, time.monotonic_ns() - due))
            wall = time.monotonic()
            if wall - self._wall >= BUSY_WINDOW_S:
                cpu = time.process_time()
                self.busiest_share = max(self.busiest_share, (cpu - self._cpu) / (wall - self._wall))
                self._cpu, self._wall = cpu, wall
