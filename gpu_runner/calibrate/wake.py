"""What the first step after idle time takes longer: caches went cold, and the machine did other things."""

from collections.abc import Callable
from statistics import median

from gpu_runner.calibrate.grid import Point
from gpu_runner.calibrate.measure import Bench
from scheduler_core.types.time import NS_PER_MS, NS_PER_S, Ns

_IDLE_NS: tuple[Ns, ...] = (0, NS_PER_MS, 5 * NS_PER_MS, 25 * NS_PER_MS, 100 * NS_PER_MS, 300 * NS_PER_MS)
WAKE_ROUND_S = len(_IDLE_NS) * 0.01 + 2 * sum(_IDLE_NS) / NS_PER_S
"""About how long one repeat takes."""
_POINTS = (Point(batch=1, context=128), Point(chunk=64))


def measure_wake(
    bench: Bench, points: tuple[Point, ...], repeats: int, check: Callable[[], None]
) -> list[tuple[Ns, Ns]]:
    """Rises of the median step of ``points`` over that without idling, by idle time; they never fall with it."""
    times: dict[tuple[Point, Ns], list[Ns]] = {}
    for _ in range(repeats):
        for point in points:
            for idle_ns in _IDLE_NS:
                check()
                times.setdefault((point, idle_ns), []).append(bench.after_idle(point, idle_ns))
    knots, highest = [], 0
    for idle_ns in _IDLE_NS:
        rises = [median(times[point, idle_ns]) - median(times[point, 0]) for point in points]
        highest = max(highest, round(sum(rises) / len(rises)))
        knots.append((idle_ns, highest))
    return knots


def wake_points(*, kv_blocks: int, block_size: int, model_length: int) -> tuple[Point, ...]:
    """The steps to wake with that fit pool and model: one decode, one short prompt."""
    return tuple(p for p in _POINTS if p.blocks(block_size) <= kv_blocks and p.longest <= model_length)
