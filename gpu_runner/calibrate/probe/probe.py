"""Calibration of a server: open it, send the probe in rounds, read its steps, fit a profile."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gpu_runner.calibrate.fit import Fit, fit
from gpu_runner.calibrate.measured import Measured
from gpu_runner.calibrate.probe.design import Limits, Placed, Point, plan, points
from gpu_runner.calibrate.probe.reading import Alone, Manners, Read, Streams, measured, read
from gpu_runner.calibrate.stopping import Stopped
from gpu_runner.server.client.events import Clock, Event, Over
from gpu_runner.server.client.player import Player
from gpu_runner.server.client.realtime import real_time
from gpu_runner.server.client.shardplan import ShardPlan
from gpu_runner.server.http.loop import run
from gpu_runner.server.opened import Opened, open_deployment
from scheduler_core.policies.resolving import resolve
from scheduler_core.sim.cost import StepCost
from scheduler_core.spec.job import CalibrationJob
from scheduler_core.spec.server import Access, ServerTarget
from scheduler_core.spec.target import HostTime, Profile
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.shape import StepShape, causal_pairs
from scheduler_core.types.time import Ns

_FIRST_ROUND_SHARE = 0.3  # of the time
_LEAST_ROUNDS = 3  # so that a server's first times at a shape, which are its longest, are outvoted
_LEAST_POINTS = 8  # kinds of steps, so that some can be left out of the fit
_UNKNOWN_LENGTH = 4096
_OUTLIER = 4.0
_ENOUGH_POINTS = 5  # of a round, before the time for it ends it
_EXTRA_SHARE = 0.6
_LOOK_EVERY_S = 0.1
_HEAD_START_NS = 50_000_000
_SALTS = 1 << 62

OnProgress = Callable[[float], None]
Stop = Callable[[], bool]


def calibrate_server(job: CalibrationJob, *, seconds: float, progress: OnProgress, stop: Stop) -> Profile:
    """Probe the server of ``job`` for about ``seconds`` after it is ready, and fit a profile.

    A step's time is that between two tokens of a stream, so the server's own planning is in it. What a request needs
    from the client to its first step and back is found from prompts sent to the idle server.

    Raises:
        InputError: the server cannot be reached, refuses the probe, or shows too few steps to fit.
        Stopped: ``stop`` became true.
    """
    target = job.server
    assert target is not None  # the caller asks for server jobs alone
    access = job.access or Access(url=target.url)
    opened = open_deployment(target, "", access, resolve(job.policy), folder=Path(job.workdir), stop=stop)
    try:
        return _Probe(job, target, opened, _Clock(seconds, progress, stop)).profile()
    finally:
        opened.close()


class _Clock:
    """The probe's time: how much is spent, and whether to stop."""

    def __init__(self, seconds: float, progress: OnProgress, stop: Stop) -> None:
        self._began, self._seconds = time.monotonic(), seconds
        self._progress, self._stop = progress, stop

    @property
    def share(self) -> float:
        """The share of the time that is spent."""
        return (time.monotonic() - self._began) / self._seconds

    def check(self) -> None:
        """Tell how far it is; `Stopped` when asked to stop."""
        if self._stop():
            raise Stopped("calibration was stopped")
        self.tell()

    def tell(self) -> None:
        """Tell how far it is."""
        self._progress(min(0.99, self.share))

    def past(self, share: float, enough: Stop) -> Stop:
        """Whether ``share`` of the time is spent and there is ``enough``, or nearly twice as much time is spent.

        Also once asked to stop.
        """
        last = share + _EXTRA_SHARE
        return lambda: self._stop() or self.share > last or (self.share > share and enough())


@dataclass(frozen=True, slots=True)
class _Seen:
    """What all rounds showed."""

    readings: list[tuple[int, int, Read]]

    @property
    def steps(self) -> list[Measured]:
        return measured(self.readings)

    @property
    def prompt_steps(self) -> int:
        """How many steps with a part of a prompt were read."""
        return sum(shape.prefill_tokens > 0 for _, _, found in self.readings for _, shape, _ in found.steps)

    @property
    def singles(self) -> list[tuple[StepShape, Ns]]:
        return [item for _, _, found in self.readings for item in found.singles]

    @property
    def alone(self) -> list[Alone]:
        return [item for _, _, found in self.readings for item in found.alone]


class _Probe:
    """Rounds over the same points, each a plan played by the load client."""

    def __init__(self, job: CalibrationJob, target: ServerTarget, opened: Opened, clock: _Clock) -> None:
        self._job, self._target, self._opened, self._clock = job, target, opened, clock
        self._settings = opened.found.settings | _stated(job)
        self._limits = _limits(opened, self._settings)
        other = opened.found.other
        self._manners = Manners(
            budget=self._limits.budget,
            prefill_cap=self._settings.get("batch.long_prefill_cap") or None,
            mixes=opened.found.kind != "sglang" or bool(other.get("enable_mixed_chunk")),
        )

    def profile(self) -> Profile:
        seen = self._rounds()
        steps = seen.steps
        kinds = len({step.point for step in steps})
        if kinds < _LEAST_POINTS:
            message = f"showed {kinds} kinds of steps where {_LEAST_POINTS} are needed; give the probe more time"
            raise InputError([Problem("server", message)])
        self._clock.check()
        return self._fitted(fit(steps), seen)

    def _rounds(self) -> _Seen:
        chosen = points(self._limits)
        if not chosen:
            message = f"holds sequences of {self._limits.model_length} tokens: too few to measure anything"
            raise InputError([Problem("server", message)])
        seen, order, round_, until = _Seen([]), random.Random(0), 0, _FIRST_ROUND_SHARE
        while round_ < _LEAST_ROUNDS or self._clock.share < 1.0:
            found = self._round(chosen, round_, until)
            if not found:
                break
            seen.readings.extend((placed.point.number, round_, reading) for placed, reading in found)
            if round_ == 0:
                chosen = [placed.point for placed, _ in found]
            order.shuffle(chosen)
            round_, until = round_ + 1, 1.0
        return seen

    def _round(self, chosen: Sequence[Point], round_: int, until: float) -> list[tuple[Placed, Read]]:
        """What the points completed until a share of the time show; the first failure of a request, if none is."""
        requests, placed = plan(chosen, self._limits, seed=round_)
        streams, reasons = Streams(), list[str]()

        def take(events: list[Event]) -> None:
            for event in events:
                streams.take(event)
                if isinstance(event, Over) and event.outcome == Outcome.FAILED:
                    reasons.append(event.reason)

        def enough() -> bool:  # a third round is a bonus, of which any part is welcome
            return round_ >= _LEAST_ROUNDS or sum(streams.complete(item) for item in placed[:_ENOUGH_POINTS]) == min(
                _ENOUGH_POINTS, len(placed)
            )

        with real_time():
            run(self._play(Player(self._shard(requests, round_), take), self._clock.past(until, enough)))
        self._clock.check()
        done = [item for item in placed if streams.complete(item)]
        if not done and reasons:
            raise InputError([Problem("server", f"refused the probe: {reasons[0]}")])
        return [(item, read(item, requests, streams.by_request, self._manners)) for item in done]

    async def _play(self, player: Player, over: Stop) -> None:
        """Play in this process, one point after another being no load for a client, until the end or ``over``."""

        async def watch() -> None:
            while not over():
                self._clock.tell()
                await asyncio.sleep(_LOOK_EVERY_S)
            player.stop("the time for it was spent")

        watcher = asyncio.create_task(watch())
        await player.warm_up()
        await player.play(Clock(time.monotonic_ns() + _HEAD_START_NS))
        watcher.cancel()

    def _shard(self, requests: Sequence[Any], round_: int) -> ShardPlan:
        salt = (time.time_ns() + round_) % _SALTS
        return ShardPlan(
            run=f"{self._job.run}-{round_}",
            requests=tuple(requests),
            manner=replace(self._opened.manner, salt=salt),
            client=self._target.client,
            origin=self._opened.origin,
            headers=self._opened.headers,
            warm=8,
            feed_back=False,
        )

    def _fitted(self, fitted: Fit, seen: _Seen) -> Profile:
        found, limits = self._opened.found, self._limits
        size = self._settings.get("cache.block_size") or 16
        blocks = self._settings.get("cache.blocks")
        profile = Profile(
            name=self._job.name,
            model=found.model,
            device=f"{found.kind} {found.version} as served".replace("  ", " "),
            dtype="as served",
            cost=fitted.cost,
            residual_share=fitted.residual_share,
            drift_share=fitted.drift_share,
            held_out_error_share=fitted.held_out_error_share,
            held_out_bias_share=fitted.held_out_bias_share,
            domain=fitted.domain,
            steps_measured=len(seen.singles) + seen.prompt_steps,
            measured_on=self._measured_on(size, blocks),
            kv_blocks=blocks or max(1, math.ceil(fitted.domain["context_tokens"] / size)),
            model_length=limits.model_length,
        )
        entry_ns = _entry_ns(profile, seen.alone, self._manners)
        return profile.model_copy(
            update={
                "host": HostTime(wake_knots=((0, entry_ns),) if entry_ns else ()),
                "residual_share": _spread(profile, seen.singles),
            }
        )

    def _measured_on(self, block_size: int, blocks: int | None) -> dict[str, str | int | float]:
        found = self._opened.found
        stated = {name.partition(".")[2]: self._settings.get(name) for name in ("batch.token_budget", "batch.size")}
        where = {"launch": self._target.launch, "endpoint": self._target.endpoint, "address": self._target.url}
        return {
            "server": f"{found.kind} {found.version}".strip(),
            **{name: value for name, value in where.items() if value is not None},
            **{name: value for name, value in stated.items() if isinstance(value, int)},
            "block_size": block_size,
            "kv_blocks_known": "as the server says" if blocks else "at least; the server does not say",
        }


def _stated(job: CalibrationJob) -> dict[str, Any]:
    """What the job's policy says of a server that does not say it itself."""
    batch, cache = job.policy.batch, job.policy.cache
    said = {
        "batch.token_budget": batch.token_budget, "batch.size": batch.size,
        "cache.block_size": cache.block_size, "cache.blocks": cache.blocks,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value is not None}


def _limits(opened: Opened, settings: dict[str, Any]) -> Limits:
    length = opened.found.other.get("model_length")
    size, blocks = settings.get("cache.block_size"), settings.get("cache.blocks")
    return Limits(
        model_length=min(length, 32_768) if isinstance(length, int) else _UNKNOWN_LENGTH,
        kv_tokens=size * blocks if size and blocks else None,
        batch=settings.get("batch.size"),
        budget=settings.get("batch.token_budget"),
    )


def _entry_ns(profile: Profile, alone: Sequence[Alone], manners: Manners) -> Ns:
    """What a prompt to the idle server took beyond its steps, usually."""
    cost = StepCost(profile)
    beyond = []
    for item in alone:
        start, steps = 0, 0
        for length in manners.chunks(item.prompt, 0):
            steps += cost.step_ns(StepShape(length, 0, 0, causal_pairs(start, length), start == 0), 0)
            start += length
        beyond.append(item.ttft_ns - steps)
    return max(0, round(median(beyond))) if beyond else 0


def _spread(profile: Profile, singles: Sequence[tuple[StepShape, Ns]]) -> float:
    """Standard deviation of measured / predicted - 1 of single steps, those that a stall stretched pulled in."""
    cost = StepCost(profile)
    ratios = np.array([duration / cost.step_ns(shape, 0) - 1 for shape, duration in singles])
    middle = float(np.median(ratios))
    wide = _OUTLIER * max(0.02, 1.4826 * float(np.median(np.abs(ratios - middle))))
    return float(np.clip(ratios, middle - wide, middle + wide).std())
