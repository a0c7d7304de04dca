"""What a policy expects of an answer's length. None of them can see the true one.

A learning predictor knows the answers that have ended, as a real scheduler does. `Announced` passes on what a study
announces with a request from outside the scheduler (`scheduler_core.types.foresight`); in a run without such a study
there is nothing to pass on, and it falls back to the declared limit.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from scheduler_core.sched.policy import Predictor
from scheduler_core.sched.view import RequestView
from scheduler_core.types.noise import blurred

WINDOW = 512
"""Answers remembered by learning predictors, per class."""


@dataclass(frozen=True, slots=True)
class DeclaredLimit:
    """No prediction: the declared limit."""

    def expected(self, request: RequestView) -> int:
        return request.spec.output_limit

    def finished(self, request: RequestView) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Announced:
    """The length announced with the request, else the declared limit."""

    def expected(self, request: RequestView) -> int:
        announced = request.spec.foreseen
        return request.spec.output_limit if announced is None else _within(announced, request)

    def finished(self, request: RequestView) -> None:
        return None


class MeanOfEnded:
    """The mean length of the last answers, rounded; the declared limit before the first has ended. O(1)."""

    def __init__(self, window: int = WINDOW) -> None:
        self._lengths: deque[int] = deque(maxlen=window)
        self._sum = 0

    def expected(self, request: RequestView) -> int:
        if not self._lengths:
            return request.spec.output_limit
        return _within(round(self._sum / len(self._lengths)), request)

    def finished(self, request: RequestView) -> None:
        if len(self._lengths) == self._lengths.maxlen:
            self._sum -= self._lengths[0]
        self._lengths.append(request.emitted)
        self._sum += request.emitted


class QuantileOfEnded:
    """The ``share`` quantile of the last answers; the declared limit before the first has ended.

    For a request that has emitted more already, the quantile of those that were at least as long. O(window) per end.
    """

    def __init__(self, share: float, window: int = WINDOW) -> None:
        self._share = share
        self._lengths: deque[int] = deque(maxlen=window)
        self._sorted: list[int] = []

    def expected(self, request: RequestView) -> int:
        longer = bisect_left(self._sorted, request.emitted + 1)
        count = len(self._sorted) - longer
        if not count:
            return request.spec.output_limit
        return _within(self._sorted[longer + min(count - 1, int(self._share * count))], request)

    def finished(self, request: RequestView) -> None:
        if len(self._lengths) == self._lengths.maxlen:
            del self._sorted[bisect_left(self._sorted, self._lengths[0])]
        self._lengths.append(request.emitted)
        insort(self._sorted, request.emitted)


class MeanByClass:
    """`MeanOfEnded` of each class of requests: tenant, tier, or power of two of the prompt length."""

    def __init__(self, kind: str, window: int = WINDOW) -> None:
        self._kind = kind
        self._window = window
        self._classes: dict[str | int, MeanOfEnded] = {}

    def expected(self, request: RequestView) -> int:
        known = self._classes.get(self._class_of(request))
        return request.spec.output_limit if known is None else known.expected(request)

    def finished(self, request: RequestView) -> None:
        self._classes.setdefault(self._class_of(request), MeanOfEnded(self._window)).finished(request)

    def _class_of(self, request: RequestView) -> str | int:
        if self._kind == "prompt":
            return request.spec.prompt_tokens.bit_length()
        return request.spec.tenant if self._kind == "tenant" else request.spec.tier


@dataclass(frozen=True, slots=True)
class Blurred:
    """Another predictor with an error of its own for each request; see `scheduler_core.types.noise.blurred`."""

    inner: Predictor
    sigma: float
    bias: float
    seed: int

    def expected(self, request: RequestView) -> int:
        exact = self.inner.expected(request)
        seen = blurred(exact, sigma=self.sigma, bias=self.bias, seed=self.seed, counter=request.id)
        return _within(round(seen), request)

    def finished(self, request: RequestView) -> None:
        self.inner.finished(request)


def _within(length: int, request: RequestView) -> int:
    """A length that is still possible: more than was emitted, no more than declared."""
    return min(max(length, request.emitted + 1), request.spec.output_limit)
