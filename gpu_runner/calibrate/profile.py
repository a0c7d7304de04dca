"""Calibration as one call: load, measure in rounds, fit, and write the profile down."""

import logging
import random
import time
from collections.abc import Callable

from gpu_runner.calibrate.fit import fit
from gpu_runner.calibrate.grid import Point, points
from gpu_runner.calibrate.host import HostCost, measure_host
from gpu_runner.calibrate.measure import Bench, Measured
from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.settings import EngineSettings, LoadReport
from scheduler_core.spec.target import Affine, Profile
from scheduler_core.types.errors import HeadwayError, InputError, Problem

_LOG = logging.getLogger(__name__)
_FIRST_ROUND_SHARE = 0.3
_LEAST_POINTS = 8
_LEAST_ROUNDS = 3

OnProgress = Callable[[float], None]
"""Called with the share of the work that is done, 0 to 1."""
Stop = Callable[[], bool]


class Stopped(HeadwayError):  # noqa: N818 - asked for, not an error
    """The calibration was told to stop before it had enough to fit."""


def calibrate(
    settings: EngineSettings,
    *,
    seconds: float,
    name: str = "calibrated",
    progress: OnProgress = lambda share: None,
    stop: Stop = lambda: False,
) -> Profile:
    """Measure ``settings`` for about ``seconds`` (loading included) and fit a profile.

    A step's predicted time spans from the end of the step before it to its own: the engine's work, which is measured
    on a grid of hand-made steps, and the host's planning and evidence, measured in the real loop.

    Raises:
        InputError: the settings cannot be met, or the pool is too small to measure anything.
        Stopped: ``stop`` became true.
    """
    ends = time.monotonic() + seconds
    executor = TorchExecutor(settings)
    report = executor.load()
    executor.start()
    grid = points(kv_blocks=settings.kv_blocks, block_size=settings.block_size, model_length=executor.info.model_length)
    if len(grid) < _LEAST_POINTS:
        message = f"{settings.kv_blocks} blocks of {settings.block_size} hold too few steps to measure; give more"
        raise InputError([Problem("target.kv_blocks", message)])
    steps = _measure(Bench(executor), grid, ends, progress, stop)
    host = measure_host(executor)
    progress(1.0)
    return _profile(name, executor, report, steps, host)


def _measure(bench: Bench, grid: list[Point], ends: float, progress: OnProgress, stop: Stop) -> list[Measured]:
    """A first round over as much of the grid as its share of the time allows, then shuffled repeats of the same."""
    began = time.monotonic()
    span = max(ends - began, 0.001)
    steps: list[Measured] = []
    chosen: list[int] = []
    for number, point in enumerate(grid):
        if len(chosen) >= _LEAST_POINTS and time.monotonic() - began > _FIRST_ROUND_SHARE * span:
            break
        _check(stop)
        chosen.append(number)
        steps += bench.measure(point, number=number, round_=0)
        progress(min(0.99, (time.monotonic() - began) / span))
    order = random.Random(0)
    round_ = 1
    while round_ < _LEAST_ROUNDS or time.monotonic() < ends:
        order.shuffle(chosen)
        for number in chosen:
            _check(stop)
            if round_ >= _LEAST_ROUNDS and time.monotonic() >= ends:
                break
            steps += bench.measure(grid[number], number=number, round_=round_)
            progress(min(0.99, (time.monotonic() - began) / span))
        round_ += 1
    _LOG.info("measured %d steps of %d points in %d rounds", len(steps), len(chosen), round_)
    return steps


def _check(stop: Stop) -> None:
    if stop():
        raise Stopped("calibration was stopped")


def _profile(name: str, executor: TorchExecutor, report: LoadReport, steps: list[Measured], host: HostCost) -> Profile:
    settings = executor.settings
    fitted = fit(steps)
    cost = fitted.cost
    return Profile(
        name=name,
        model=settings.model,
        device=str(report.fingerprint["device"]),
        dtype=settings.dtype,
        cost=Affine(
            base_ns=cost.base_ns + host.base_ns,
            prefill_token_ns=cost.prefill_token_ns,
            decode_request_ns=cost.decode_request_ns + host.request_ns,
            context_token_ns=cost.context_token_ns,
            prefill_pair_ns=cost.prefill_pair_ns,
        ),
        residual_share=fitted.residual_share,
        drift_share=fitted.drift_share,
        held_out_error_share=fitted.held_out_error_share,
        domain=fitted.domain,
        steps_measured=len(steps),
        measured_on={
            **report.fingerprint,
            "block_size": settings.block_size,
            "host_base_us": round(host.base_ns / 1000, 1),
            "host_request_us": round(host.request_ns / 1000, 2),
        },
        kv_blocks=settings.kv_blocks,
        model_length=executor.info.model_length,
    )
