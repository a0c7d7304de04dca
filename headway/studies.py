"""Studies in this process, with no server: a guided plan stage by stage, a search and its confirmation, a prediction
and its measurement.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headway import profiles
from headway.play import Step, play, read_plan
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.files import write_json
from scheduler_core.policies.resolving import playable
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.studies import GuidedSpec, PredictionSpec, SearchSpec
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.verdict.guided import LAST, StageResult, guided_report, next_stage, outcome
from scheduler_core.verdict.prediction import MEASURED, PREDICTED, PredictionResult, compare, modelled, write_down
from scheduler_core.verdict.schema import Verdict
from scheduler_core.verdict.search import SearchResult, confirmation

OnStep = Callable[[Step], None]


@dataclass
class Studied:
    """What a study found; ``search`` only of a search, whose confirmation is then the one stage, and ``predicted``
    only of a prediction.
    """

    name: str
    stages: list[StageResult] = field(default_factory=list)
    runs: list[RunSummary] = field(default_factory=list)
    search: SearchResult | None = None
    predicted: PredictionResult | None = None

    @property
    def report(self) -> list[str]:
        """The sentences of a guided plan or a prediction; none of a search, which has its own."""
        if self.predicted is not None:
            return self.predicted.report
        return guided_report(self.stages) if self.search is None else []

    @property
    def verdicts(self) -> list[Verdict]:
        """Of every stage."""
        return [stage.verdict for stage in self.stages]

    @property
    def exit_code(self) -> int:
        """That of the last verdict; 0 where a search was not to be confirmed."""
        return self.stages[-1].verdict.exit_code if self.stages else 0

    def as_json(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        return {
            "name": self.name,
            "report": self.report,
            "search": None if self.search is None else self.search.canonical(),
            "prediction": None if self.predicted is None else self.predicted.canonical(),
            "verdicts": [verdict.canonical() for verdict in self.verdicts],
        }


def play_guided(spec: GuidedSpec, *, base: Path, on_step: OnStep) -> Studied:
    """Play every stage, each from what the one before accepted.

    Raises:
        InputError: the workload, profile or start cannot be had.
        PlayError: no run of a stage succeeded.
    """
    found = Studied(spec.name)
    number, experiment = next_stage(spec, -1, None, allows=_allows(spec))
    while True:
        _stage(found, number, experiment, base, on_step)
        result = found.stages[-1]
        if number == LAST:
            return found
        try:
            accepted = outcome(result.spec, result.verdict)
            number, experiment = next_stage(spec, number, accepted, allows=_allows(spec))
        except InputError:
            return found  # nothing was better than the reference, so there is no outcome to compare


def play_search(spec: SearchSpec, *, base: Path, on_policy: Callable[[int, int], None], on_step: OnStep) -> Studied:
    """Play the policies of a search and then, where it says so, the confirmation of the best.

    Raises:
        InputError: the workload or profile cannot be had.
        PlayError: no run of the confirmation succeeded.
    """
    from gpu_runner.search.play import Search

    assert spec.target.modelled is not None  # the spec's own rule
    profile, groups = spec.target.modelled.profiles(lambda *asked: profiles.choose(*asked)[0])
    plan = read_plan(spec.workload, base)
    found = Studied(spec.name, search=Search(spec, plan, profile, groups).result(on_policy, lambda: False))
    assert found.search is not None
    experiment = confirmation(spec, found.search)
    if experiment is not None:
        _stage(found, 0, experiment, base, on_step)
    return found


def play_prediction(spec: PredictionSpec, *, base: Path, on_step: OnStep, evidence: Path) -> Studied:
    """Play the sweep on the model, write the prediction to ``evidence``, and only then measure.

    The prediction is in ``prediction.json``, made anew and never written over; ``measurement`` has the runs' evidence.

    Raises:
        InputError: the workload or profile cannot be had, or ``evidence`` has a prediction already.
        PlayError: no run succeeded.
    """
    file = evidence / "prediction.json"
    if file.exists():
        raise InputError([Problem(str(file), "is there already, and a prediction is never written over")])
    profile, _ = profiles.choose(spec.profile, "profile")
    found = Studied(spec.name)
    _stage(found, PREDICTED, modelled(spec), base, on_step)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = write_down(spec, profile, found.stages[-1].verdict, written_at=now)
    found.predicted = PredictionResult(prediction=made)
    evidence.mkdir(parents=True, exist_ok=True)
    write_json(file, made.canonical())
    file.chmod(0o444)
    _stage(found, MEASURED, spec.experiment, base, on_step, evidence / "measurement")
    found.predicted = PredictionResult(prediction=made, outcome=compare(made, found.stages[-1].verdict))
    return found


def _stage(
    found: Studied, number: int, experiment: Any, base: Path, on_step: OnStep, evidence: Path | None = None
) -> None:
    played = play(experiment, base=base, on_step=on_step, evidence=evidence)
    assert played.verdict is not None  # play raises when there is none
    found.stages.append(StageResult(number, experiment, played.verdict))
    found.runs += played.runs


def _allows(spec: GuidedSpec) -> Callable[[PolicySpec], bool]:
    modelled = spec.target.modelled
    profile = None if modelled is None else profiles.choose(modelled.profile)[0]
    return lambda policy: playable(policy, spec.target, profile)
