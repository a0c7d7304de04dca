"""What it takes to copy KV blocks to host memory and back."""

from collections.abc import Callable
from itertools import count
from statistics import median

import numpy as np
from scipy.optimize import nnls

from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.spec.target import HostLink
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.plan import BlockCopy, StepPlan
from scheduler_core.types.time import NS_PER_S, Ns

HOST_BLOCKS = 64
_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_REPEATS = 5


def measure_link(executor: TorchExecutor, check: Callable[[], None]) -> HostLink:
    """A latency and a bandwidth through the median times of copying some numbers of blocks out and in."""
    settings = executor.settings
    counts = [blocks for blocks in _COUNTS if blocks <= min(settings.host_blocks, settings.kv_blocks)]
    plans = count()
    times: dict[int, list[Ns]] = {}
    for _ in range(_REPEATS):
        for blocks in counts:
            check()
            copies = tuple(BlockCopy(block, block) for block in range(blocks))
            out, back = StepPlan(next(plans), (), copies_out=copies), StepPlan(next(plans), (), copies_in=copies)
            times.setdefault(blocks, []).extend(_copy_ns(executor, plan) for plan in (out, back))
    inputs = np.array([(1.0, blocks) for blocks in counts])
    measured = np.array([median(times[blocks]) for blocks in counts], np.float64)
    # Relative errors, so that one block counts as much as many.
    (latency, block_ns), _norm = nnls(inputs / measured[:, None], np.ones(len(counts)))
    token_bytes = executor.info.bytes_per_token(settings.dtype)
    block_ns = max(float(block_ns), 1.0)
    return HostLink(
        token_bytes=token_bytes,
        bytes_per_s=settings.block_size * token_bytes * NS_PER_S / block_ns,
        latency_ns=float(latency),
    )


def _copy_ns(executor: TorchExecutor, plan: StepPlan) -> Ns:
    executor.launch(plan)
    result = executor.wait(None)
    if result is None:
        raise ExecutorError("copies of a calibration gave no result")
    return sum(end - start for kind, _resource, start, end in result.lanes if kind == IntervalClass.SWAP)
