"""A load sweep in this process: every arm at every load, then how much each carries and which carries more."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.play import Played, PlayError, Step, play
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.loads import at_load, load_unit
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.verdict.load_sweep import LEAST_LOADS, sweep_verdict
from scheduler_core.verdict.schema import SweepVerdict
from scheduler_core.verdict.wording import digits


@dataclass
class Swept:
    """What a sweep found; one verdict for each candidate, or one without decision for a single arm."""

    unit: str
    points: dict[float, list[RunSummary]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    verdicts: list[SweepVerdict] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """That of the best candidate."""
        return min(verdict.exit_code for verdict in self.verdicts)

    def as_json(self) -> dict[str, Any]:
        """Plain data, as ``headway sweep --json`` prints it."""
        return {
            "unit": self.unit,
            "notes": self.notes,
            "points": [
                {"load": load, "runs": [run.canonical() for run in runs]} for load, runs in sorted(self.points.items())
            ],
            "verdicts": [verdict.canonical() for verdict in self.verdicts],
        }


def sweep(
    spec: ExperimentSpec,
    loads: Sequence[float],
    *,
    base: Path,
    on_step: Callable[[float, Step], None],
    attainment: float = 0.95,
    evidence: Path | None = None,
) -> Swept:
    """Play ``spec`` at each of ``loads`` (requests/s, or users of a closed loop) and judge the capacities.

    Args:
        spec: The experiment; its own load is replaced, its goal's ``better_by`` is the margin of capacity.
        loads: At least three different ones.
        base: Folder from which a trace file's relative path is taken.
        on_step: Told the load and the step whenever a run starts or requests end.
        attainment: Share of requests that must meet the objectives of their tier.
        evidence: Folder for records and tables, by load; absent: they are dropped.

    Raises:
        InputError: too few loads, a workload without one load, or an arm that completed no run at a load.
        PlayError: at some load no run succeeded.
    """
    if len(set(loads)) < LEAST_LOADS or min(loads, default=0) <= 0:
        raise InputError([Problem("loads", f"give at least {LEAST_LOADS} different loads above 0")])
    swept = Swept(load_unit(spec.workload), notes=_without_objectives(spec))
    planned = [
        (load, spec.model_copy(update={"workload": at_load(spec.workload, load)})) for load in sorted(set(loads))
    ]
    for load, at in planned:
        try:
            played = play(
                at,
                base=base,
                on_step=lambda step, load=load: on_step(load, step),  # type: ignore[misc]
                evidence=evidence and evidence / f"load-{load:g}",
            )
        except PlayError as error:
            raise PlayError(f"at {digits(load)} {swept.unit}: {error}") from None
        _take(swept, load, played)
    swept.verdicts = _verdicts(spec, swept, attainment)
    return swept


def _take(swept: Swept, load: float, played: Played) -> None:
    swept.points[load] = played.runs
    swept.notes += [note for note in played.notes if note not in swept.notes]
    swept.notes += [
        f"failed at {digits(load)} {swept.unit}: {item['arm']}, repeat {item['repeat'] + 1}: {item['reason']}"
        for item in played.failures
    ]


def _verdicts(spec: ExperimentSpec, swept: Swept, attainment: float) -> list[SweepVerdict]:
    candidates: list[str | None] = [arm for arm in spec.arms if arm != spec.baseline]
    return [
        sweep_verdict(
            swept.points,
            baseline=spec.baseline,
            candidate=candidate,
            unit=swept.unit,
            attainment=attainment,
            better_by=spec.goal.better_by,
        )
        for candidate in candidates or [None]
    ]


def _without_objectives(spec: ExperimentSpec) -> list[str]:
    free = [
        name for name, tier in spec.workload.tiers.items() if (tier.ttft_ms, tier.tpot_ms, tier.e2e_ms) == (None,) * 3
    ]
    return [
        f"tier {name} has no objectives, so each of its finished requests meets them; "
        f"set workload.tiers.{name}.ttft_ms to see a capacity"
        for name in free
    ]
