"""Bands around predicted figures: the same plan played by models as much faster and slower as calibration may err."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler_core.drive.cuts import Outside
from scheduler_core.evidence.prediction import Band
from scheduler_core.evidence.schema import Figure
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.sim.rows import RequestRow
from scheduler_core.spec.base import Spec
from scheduler_core.spec.target import Profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.foresight import Foresight
from scheduler_core.types.overlap import DualBatch
from scheduler_core.types.patience import Patience
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import NS_PER_S, Ns

STANDARD_ERRORS = 1.96
_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
BANDED = (
    *(f"{name}_{figure}_ms" for name in ("ttft", "tpot", "e2e") for figure in ("mean", *_QUANTILES)),
    "throughput_tokens_per_s",
    "throughput_requests_per_s",
)
"""Metrics that get a band: means and quantiles over finished requests, and rates."""


def step_error_share(profile: Profile) -> float:
    """How far all step times may be off together: two standard errors of the profile's bias and drift, below 1."""
    return min(0.9, STANDARD_ERRORS * math.hypot(profile.held_out_bias_share, profile.drift_share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is played: requests under a policy, with their tiers' patience. ``build`` makes a fresh policy each time."""

    build: Callable[[], PolicySet]
    requests: Sequence[PlannedRequest]
    prefix_block_size: int
    patience: Mapping[str, Patience] = field(default_factory=dict)
    foresight: Foresight | None = None
    dual_batch: DualBatch = DualBatch.NEVER


Play = Callable[[int], Mapping[str, float]]
"""Plays a plan on models that are as fast as their profiles say (0), or `off` by so much less (-1) or more time (1);
gives the figures of `BANDED`, as far as there are any."""


def off(profile: Profile, way: int) -> Profile:
    """``profile`` with every step as much faster (``way`` -1) or slower (1) as `step_error_share` says."""
    return scaled(profile, 1 + way * step_error_share(profile))


def bands(play: Play, figures: Mapping[str, Figure]) -> dict[str, Band]:
    """The band of each of ``figures`` that moves with step times: its value times what the figure of a faster, or a
    slower model is to that of the profiles themselves.
    """
    middle, *ends = (play(way) for way in (0, -1, 1))
    found: dict[str, Band] = {}
    for name, value in middle.items():
        figure = figures.get(name)
        others = [end[name] for end in ends if name in end]
        if figure is None or figure.value is None or len(others) < len(ends) or not value:
            continue
        reach = [figure.value * other / value for other in (value, *others)]
        found[name] = Band(low=min(reach), high=max(reach))
    return found


def scaled(profile: Profile, factor: float) -> Profile:
    """``profile`` with every step ``factor`` times as long."""
    times = {name: _times(getattr(profile, name), factor) for name in ("cost", "host", "copies")}
    parallel = None if profile.parallel is None else profile.parallel.scaled(factor)
    return profile.model_copy(update={**times, "parallel": parallel})


def _times(spec: Any, factor: float) -> Spec:
    values = {
        name: tuple((place, ns * factor) for place, ns in value) if isinstance(value, tuple) else value * factor
        for name, value in spec
    }
    made: Spec = spec.model_copy(update=values)
    return made


def played_fast(scene: Scene, profile: Profile) -> dict[str, float]:
    """Figures of one instance whose steps follow one another, from event to event (`Play`)."""
    rows: list[RequestRow] = []
    simulation = FastForward(
        scene.build(),
        StepCost(profile, dual_batch=scene.dual_batch),
        rows.append,
        prefix_block_size=scene.prefix_block_size,
        outside=Outside(patience=scene.patience, foresight=scene.foresight),
    )
    return figures_of(rows, simulation.run(scene.requests).end_ns)


def figures_of(rows: Sequence[RequestRow], end_ns: Ns) -> dict[str, float]:
    """Means and quantiles over finished requests, and rates until ``end_ns``, by the names of `BANDED`."""
    finished = [row for row in rows if row.outcome == Outcome.FINISHED and row.first_token_ns is not None]
    samples: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}
    for row in finished:
        first = row.first_token_ns or 0
        samples["ttft"].append(first - row.arrival_ns)
        samples["e2e"].append(row.end_ns - row.arrival_ns)
        if row.output_tokens > 1:
            samples["tpot"].append((row.end_ns - first) / (row.output_tokens - 1))
    found: dict[str, float] = {}
    for name, values in samples.items():
        if values:
            found[f"{name}_mean_ms"] = sum(values) / len(values)
            found |= {f"{name}_{label}_ms": quantile(values, share) for label, share in _QUANTILES.items()}
    if end_ns:
        found["throughput_tokens_per_s"] = sum(row.output_tokens for row in finished) * NS_PER_S / end_ns
        found["throughput_requests_per_s"] = len(finished) * NS_PER_S / end_ns
    return found


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the two nearest ranks."""
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)
