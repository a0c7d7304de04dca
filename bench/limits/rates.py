"""What one core of this machine reads and multiplies in a second of CPU time."""

import time
from collections.abc import Callable

import torch
from torch.nn.functional import linear

from gpu_runner.engine.hostmemory import join_pages

_MIB = 1024**2
_SQUARE = (1024, 2048)
_FEW_ROWS = (512, 1024, 2048)
_REPEATS = 10


def read_bandwidth_bytes_per_s() -> float:
    """The best of several reads of a buffer larger than a core's own caches, one thread.

    It lies on huge pages, as the engine's weights do: on small ones page walks take a third of the rate.
    """
    torch.set_num_threads(1)
    buffer = torch.ones(256 * _MIB // 4)
    join_pages()
    return buffer.nbytes / _least_s(buffer.sum)


def gemm_rate_per_s(dtype: str, rows: int | None = None) -> float:
    """Operations a second of PyTorch's own matrix product in ``dtype`` on one thread, the best of several.

    ``rows`` rows are multiplied by square matrices of some sizes, without it as many as the matrices have; the weight
    as it comes and, where PyTorch has oneDNN, in that library's own layout, which is made before.
    """
    torch.set_num_threads(1)
    best = 0.0
    for size in _SQUARE if rows is None else _FEW_ROWS:
        values = torch.randn(rows or size, size).to(getattr(torch, dtype))
        weight = torch.randn(size, size).to(values.dtype)
        taken = min(_least_s(product) for product in _products(values, weight))
        best = max(best, 2 * values.shape[0] * size * size / taken)
    return best


def _products(values: torch.Tensor, weight: torch.Tensor) -> list[Callable[[], object]]:
    found: list[Callable[[], object]] = [lambda: linear(values, weight)]
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, values.shape[0])
        found.append(lambda: torch.ops.mkldnn._linear_pointwise(values, packed, None, "none", [], ""))
    return found


def _least_s(work: Callable[[], object]) -> float:
    """The least CPU time of ``work`` among repeats, after one that warms up."""
    work()
    times = []
    for _ in range(_REPEATS):
        began = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - began)
    return max(1, min(times)) / 1e9
