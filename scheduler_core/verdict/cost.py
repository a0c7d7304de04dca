"""What tokens cost, and which configurations no other beats in every respect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.types.errors import InputError, Problem


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run: per million valid tokens (those of finished requests), and the share that bought nothing valid."""

    per_million_tokens: float
    wasted_share: float


def cost(run: RunSummary, *, price_per_device_hour: float, devices: int = 1) -> Cost:
    """Cost of a run's measured window; `InputError` where it finished nothing, so that no cost per token exists."""
    window, valid, produced = (
        _figure(run, name) for name in ("window_s", "throughput_finished_tokens_per_s", "throughput_tokens_per_s")
    )
    if not valid or not window:
        raise InputError(
            [Problem(run.run, "finished no tokens in its measured window: a cost per token does not exist")]
        )
    per_second = price_per_device_hour * devices / 3600
    wasted = max(0.0, 1 - valid / produced) if produced else 0.0
    return Cost(per_second / valid * 1e6, wasted)


def pareto(points: Mapping[str, Mapping[str, float]], better: Mapping[str, Literal["lower", "higher"]]) -> list[str]:
    """Names of the points that no other point equals or beats in every figure of ``better`` and beats in one."""
    return [name for name in points if not any(_beats(points[other], points[name], better) for other in points)]


def _beats(
    one: Mapping[str, float], other: Mapping[str, float], better: Mapping[str, Literal["lower", "higher"]]
) -> bool:
    signs: Sequence[float] = [(other[name] - one[name]) * (1 if way == "lower" else -1) for name, way in better.items()]
    return min(signs) >= 0 and max(signs) > 0


def _figure(run: RunSummary, metric: str) -> float | None:
    figure = run.metrics.get(metric)
    return figure.value if figure is not None else None
