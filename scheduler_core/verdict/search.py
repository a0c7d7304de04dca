"""What a search over policies found: the front that no other policy beats, and the best few of it."""

from collections.abc import Sequence
from typing import Any, Literal

from scheduler_core.evidence.metrics.cost import COST
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.spec.base import Spec
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.studies import SearchSpec
from scheduler_core.spec.variants import turned
from scheduler_core.verdict.pairs import log_ratio
from scheduler_core.verdict.pareto import Way, pareto
from scheduler_core.verdict.single_instance import with_single_instance
from scheduler_core.verdict.wording import amount

THROUGHPUT = "throughput_finished_tokens_per_s"
SHOWN_BEST = 3  # where nothing is to be confirmed


class Trial(Spec):
    """One policy that was played: what was chosen, the figures it reached, or why it has none."""

    number: int
    choice: dict[str, str]
    figures: dict[str, float] = {}
    failure: str = ""


class SearchResult(Spec):
    """All trials of a search (0 is the base policy), the front, and the best few, best first."""

    schema_version: Literal["headway-search/1"] = "headway-search/1"
    name: str
    method: str
    objectives: dict[str, Way]
    trials: list[Trial]
    front: list[int]
    best: list[int]
    sentence: str


def objectives(spec: SearchSpec) -> dict[str, Way]:
    """What is to be low or high: cost per valid token, throughput of finished tokens, and the tail asked for."""
    tail: Way = "higher" if METRICS[spec.tail].better == "higher" else "lower"
    return {COST: "lower", THROUGHPUT: "higher", spec.tail: tail}


def conclude(spec: SearchSpec, trials: Sequence[Trial]) -> SearchResult:
    """The result of ``trials``, of which number 0 is the base policy."""
    better = objectives(spec)
    complete = [trial for trial in trials if better.keys() <= trial.figures.keys()]
    points = {str(trial.number): {name: trial.figures[name] for name in better} for trial in complete}
    front = [int(name) for name in pareto(points, better)]
    best = _best(spec, [trial for trial in complete if trial.number in front], better)
    return SearchResult(
        name=spec.name,
        method=spec.method,
        objectives=better,
        trials=list(trials),
        front=front,
        best=best,
        sentence=_sentence(spec, trials, front, best),
    )


def policy_of(spec: SearchSpec, trial: Trial) -> PolicySpec:
    """The policy that ``trial`` played."""
    return turned(spec.base, trial.choice)


def confirmation(spec: SearchSpec, result: SearchResult) -> ExperimentSpec | None:
    """The experiment that tries the best on the real target; None where there is nothing better than the base."""
    if spec.confirm is None or not result.best:
        return None
    trials = {trial.number: trial for trial in result.trials}
    arms: dict[str, Any] = {"baseline": spec.base.canonical()}
    arms |= {f"trial {number}": policy_of(spec, trials[number]).canonical() for number in result.best}
    confirm = spec.confirm.canonical()
    del confirm["best"]
    form = {**confirm, "name": f"{spec.name} confirmed", "workload": spec.workload.canonical(), "arms": arms}
    return parse(ExperimentSpec, with_single_instance(parse(ExperimentSpec, {**form, "baseline": "baseline"})))


def _best(spec: SearchSpec, front: Sequence[Trial], better: dict[str, Way]) -> list[int]:
    """Of the front, the nearest to having the best of every figure: least sum of log ratios to it. Never the base.

    Ratios, so that a tenth of a percent of one figure does not weigh as much as a third of another.
    """
    ideal = {
        name: (min if way == "lower" else max)(trial.figures[name] for trial in front) for name, way in better.items()
    } if front else {}  # fmt: skip

    def distance(trial: Trial) -> float:
        return sum(abs(log_ratio(ideal[name], trial.figures[name], METRICS[name].unit)) for name in better)

    wanted = spec.confirm.best if spec.confirm is not None else SHOWN_BEST
    ranked = sorted((trial for trial in front if trial.number), key=lambda trial: (distance(trial), trial.number))
    return [trial.number for trial in ranked[:wanted]]


def _sentence(spec: SearchSpec, trials: Sequence[Trial], front: Sequence[int], best: Sequence[int]) -> str:
    failed = sum(bool(trial.failure) for trial in trials)
    said = f"{len(trials)} policies played, {failed} without figures; {len(front)} are beaten by no other"
    if not best:
        return f"{said}; none but the base is among them, so there is nothing to confirm"
    first = next(trial for trial in trials if trial.number == best[0])
    chosen = ", ".join(f"{name} {value}" for name, value in first.choice.items())
    units = {COST: "per million tokens", THROUGHPUT: "tokens/s"}
    figures = ", ".join(f"{name} {amount(first.figures[name], units.get(name, ''))}" for name in objectives(spec))
    return f"{said}; the best all round has {chosen}: {figures}"
