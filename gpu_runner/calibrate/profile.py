"""Calibration as one call: load, measure in rounds, fit, and write the profile down."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace

from gpu_runner.calibrate.fit import fit
from gpu_runner.calibrate.grid import Point, points
from gpu_runner.calibrate.link import HOST_BLOCKS, measure_link
from gpu_runner.calibrate.loop import Loop, capacity_rps, play, traffic
from gpu_runner.calibrate.measure import Bench
from gpu_runner.calibrate.measured import Measured
from gpu_runner.calibrate.stopping import Stopped
from gpu_runner.calibrate.wake import WAKE_ROUND_S, measure_wake, wake_points
from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.settings import EngineSettings, LoadReport
from scheduler_core.spec.target import HostLink, Profile
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import Ns

_LOG = logging.getLogger(__name__)
_FIRST_ROUND_SHARE = 0.2  # of the time, as the next two: what is spent when a part ends
_GRID_SHARE = 0.5
_WAKE_SHARE = 0.6
_LOADS = (0.4, 1.2, 0.8)  # of capacity: with idle time between, with batches that grow, and with a queue
_LEAST_LOOP_S = 0.3
_LEAST_POINTS = 8
_LEAST_ROUNDS = 3

OnProgress = Callable[[float], None]
"""Called with the share of the work that is done, 0 to 1."""
Stop = Callable[[], bool]


def calibrate(
    settings: EngineSettings,
    *,
    seconds: float,
    name: str = "calibrated",
    progress: OnProgress = lambda share: None,
    stop: Stop = lambda: False,
) -> Profile:
    """Measure ``settings`` for about ``seconds`` (loading included) and fit a profile.

    A step's predicted time spans from the end of the step before it to its own: the device's work, measured on a grid
    of hand-made steps and in the real loop, and the host's planning and evidence, measured in the real loop.

    Raises:
        InputError: the settings cannot be met, or the pool is too small to measure anything.
        Stopped: ``stop`` became true.
    """
    began = time.monotonic()
    executor = TorchExecutor(replace(settings, host_blocks=min(HOST_BLOCKS, settings.kv_blocks)))
    report = executor.load()
    executor.start()
    sizes = {"kv_blocks": settings.kv_blocks, "block_size": settings.block_size}
    grid = points(**sizes, model_length=executor.info.model_length)
    if len(grid) < _LEAST_POINTS:
        message = f"{settings.kv_blocks} blocks of {settings.block_size} hold too few steps to measure; give more"
        raise InputError([Problem("target.kv_blocks", message)])
    probe = _Probe(executor, progress, stop, began, seconds)
    probe.measure_grid(grid)
    probe.measure_link()
    probe.measure_wake(wake_points(**sizes, model_length=executor.info.model_length))
    probe.measure_loop(_profile(name, executor, report, probe))
    progress(1.0)
    return _profile(name, executor, report, probe)


class _Probe:
    """Measures within its time: the grid, copies, waking, then the real loop at some loads, ``loop`` in all."""

    def __init__(self, executor: TorchExecutor, progress: OnProgress, stop: Stop, began: float, seconds: float) -> None:
        self.steps: list[Measured] = []
        self.wake: list[tuple[Ns, Ns]] = []
        self.link: HostLink | None = None
        self.loop = Loop()
        self.within_capacity = Loop()
        self._executor = executor
        self._bench = Bench(executor)
        self._progress = progress
        self._stop = stop
        self._began = began
        self._seconds = max(seconds, 0.001)

    @property
    def share(self) -> float:
        """The share of its time that is spent."""
        return (time.monotonic() - self._began) / self._seconds

    def measure_grid(self, grid: list[Point]) -> None:
        """A first round over as much of the grid as its share of the time allows, then shuffled repeats of the same."""
        chosen: list[int] = []
        for number, point in enumerate(grid):
            if len(chosen) >= _LEAST_POINTS and self.share > _FIRST_ROUND_SHARE:
                break
            chosen.append(number)
            self._measure(point, number, 0)
        order = random.Random(0)
        round_ = 1
        while round_ < _LEAST_ROUNDS or self.share < _GRID_SHARE:
            order.shuffle(chosen)
            for number in chosen:
                if round_ >= _LEAST_ROUNDS and self.share >= _GRID_SHARE:
                    break
                self._measure(grid[number], number, round_)
            round_ += 1
        _LOG.info("measured %d steps of %d points in %d rounds", len(self.steps), len(chosen), round_)

    def measure_link(self) -> None:
        """A few copies of some sizes: a fraction of a second."""
        self.link = measure_link(self._executor, self.check)

    def measure_wake(self, chosen: tuple[Point, ...]) -> None:
        """As often as its share of the time allows, once at least."""
        left = max(0.0, _WAKE_SHARE - self.share) * self._seconds
        self.wake = measure_wake(self._bench, chosen, max(1, round(left / WAKE_ROUND_S)), self.check)

    def measure_loop(self, profile: Profile) -> None:
        """Play traffic at all loads for what is left; ``profile`` is what is known so far, and sizes them."""
        length = min(profile.model_length, profile.kv_blocks * self._executor.settings.block_size)
        best = capacity_rps(profile, block_size=self._executor.settings.block_size, longest=length)
        for number, load in enumerate(_LOADS):
            self.check()
            seconds = max(_LEAST_LOOP_S, (1 - self.share) * self._seconds / (len(_LOADS) - number))
            loop = Loop()
            rate = load * best
            play(self._executor, traffic(seconds=seconds, rate_rps=rate, longest=length, seed=number), loop, self._stop)
            self.check()
            self.loop.add(loop)
            if load <= 1:
                self.within_capacity.add(loop)

    def check(self) -> None:
        """Tell how far it is; `Stopped` when asked to stop."""
        if self._stop():
            raise Stopped("calibration was stopped")
        self._progress(min(0.99, self.share))

    def _measure(self, point: Point, number: int, round_: int) -> None:
        self.check()
        self.steps += self._bench.measure(point, number=number, round_=round_)


def _profile(name: str, executor: TorchExecutor, report: LoadReport, probe: _Probe) -> Profile:
    settings = executor.settings
    last = max(step.point for step in probe.steps)
    rounds = max(step.round for step in probe.steps)
    served = probe.loop.steps(first_point=last + 1, round_=rounds)
    fitted = fit(probe.steps, served)
    return Profile(
        name=name,
        model=settings.model,
        device=str(report.fingerprint["device"]),
        dtype=settings.dtype,
        cost=fitted.cost,
        link=probe.link,
        # With many requests it grows less for each, and matters less beside the device's: the line is for usual steps.
        host=probe.within_capacity.host().model_copy(update={"wake_knots": tuple(probe.wake)}),
        residual_share=fitted.residual_share,
        drift_share=fitted.drift_share,
        held_out_error_share=fitted.held_out_error_share,
        held_out_bias_share=fitted.held_out_bias_share,
        domain=fitted.domain,
        steps_measured=len(probe.steps) + len(served),
        measured_on={**report.fingerprint, "block_size": settings.block_size},
        kv_blocks=settings.kv_blocks,
        model_length=executor.info.model_length,
    )
