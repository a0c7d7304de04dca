"""Progress and expected time to the end, at most a few messages a second."""

import time

from gpu_runner.process import Emit
from scheduler_core.spec.job import ProgressMessage

LEAST_GAP_S = 0.25


class Progress:
    """Turns counts of ended requests into `ProgressMessage`s; the first and the last count are always told."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._began = time.monotonic()
        self._told_at = float("-inf")

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` requests have ended."""
        now = time.monotonic()
        if done < total and now - self._told_at < LEAST_GAP_S:
            return
        self._told_at = now
        eta_s = (now - self._began) / done * (total - done) if done else None
        self._emit(ProgressMessage(done=done, total=total, eta_s=eta_s))
