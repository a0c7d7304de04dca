"""An engine that tells where the CPU time of its steps goes. What it serves gives no speed figures."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from gpu_runner.engine import executor as executors
from gpu_runner.engine import instance
from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.instance import build_pool
from gpu_runner.engine.model import decoder as decoders
from gpu_runner.engine.model.choosing import build_gate, build_linear
from gpu_runner.engine.sampling import pick
from gpu_runner.engine.settings import EngineSettings
from scheduler_core.types.plan import Phase, StepPlan, StepResult
from scheduler_core.types.time import Ns

PRODUCTS, ATTENTION, OTHER_DEVICE_WORK, HOST = "products", "attention", "other_device_work", "host"
_DEVICE = "device"


class Clock:
    """CPU time of the calling thread by part; a part's calls lie inside those of the whole device's work."""

    def __init__(self) -> None:
        self._spent: Counter[str] = Counter()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, its time counted as ``part``'s."""

        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self._spent[part] += time.thread_time_ns() - began

        return call

    def take(self) -> dict[str, Ns]:
        """Time by part of the device since the last call."""
        spent, self._spent = self._spent, Counter()
        inner = {part: spent[part] for part in (PRODUCTS, ATTENTION)}
        return {**inner, OTHER_DEVICE_WORK: spent[_DEVICE] - sum(inner.values())}


class _Timed:
    """Stands for an object whose every method is a part's time."""

    def __init__(self, clock: Clock, part: str, inner: Any) -> None:
        self._clock = clock
        self._part = part
        self._inner = inner
        self._call = clock.timed(part, inner) if callable(inner) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self._call is not None  # only what could be called before is
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value
        timed = self._clock.timed(self._part, value)
        setattr(self, name, timed)  # the next time it is found without asking here
        return timed


@dataclass(slots=True)
class TimedStep:
    """A step's CPU time: the engine's own, up to the launch of the next (None for the last), and the device's parts."""

    plan: StepPlan
    engine_ns: Ns
    parts: dict[str, Ns]
    turn_ns: Ns | None = None

    @property
    def has_prompt(self) -> bool:
        """Whether it computes tokens of a prompt."""
        return any(grant.phase is not Phase.DECODE for grant in self.plan.grants)

    @property
    def device_ns(self) -> Ns:
        """CPU time of the forward and of choosing tokens."""
        return sum(self.parts.values())


class WatchedExecutor(TorchExecutor):
    """The engine on one thread, keeping a `TimedStep` for each step that it was given."""

    def __init__(self, settings: EngineSettings, clock: Clock) -> None:
        super().__init__(settings)
        self.timed: list[TimedStep] = []
        self._clock = clock
        self._began = 0

    def launch(self, plan: StepPlan) -> None:
        began = time.thread_time_ns()
        if self.timed:
            self.timed[-1].turn_ns = began - self._began
        self._began = began
        self._clock.take()
        super().launch(plan)
        self.timed.append(TimedStep(plan, time.thread_time_ns() - began, self._clock.take()))

    def wait(self, until_ns: Ns | None) -> StepResult | None:
        began = time.thread_time_ns()
        result = super().wait(until_ns)
        if result is not None:
            self.timed[-1].engine_ns += time.thread_time_ns() - began
        return result

    def take(self) -> list[TimedStep]:
        """The steps since the last call."""
        taken, self.timed = self.timed, []
        return taken


def timed(settings: EngineSettings, clock: Clock | None = None) -> WatchedExecutor:
    """A loaded engine whose steps are timed as wholes; without ``clock`` nothing inside them is looked at, or slowed by
    looking.
    """
    executor = WatchedExecutor(settings, clock or Clock())
    executor.load()
    executor.take()
    return executor


@contextmanager
def watched(settings: EngineSettings) -> Iterator[WatchedExecutor]:
    """A loaded engine with its linear layers (gates included), its attention, its forward and its sampling timed."""
    clock = Clock()
    with (
        patch.object(decoders, "build_linear", lambda *a, **kw: _Timed(clock, PRODUCTS, build_linear(*a, **kw))),
        patch.object(decoders, "build_gate", lambda *a, **kw: _Timed(clock, PRODUCTS, build_gate(*a, **kw))),
        patch.object(executors, "build_pool", lambda *args: _Timed(clock, ATTENTION, build_pool(*args))),
        patch.object(decoders.Decoder, "forward", clock.timed(_DEVICE, decoders.Decoder.forward)),
        patch.object(instance, "pick", clock.timed(_DEVICE, pick)),
    ):
        yield timed(settings, clock)
