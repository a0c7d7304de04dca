"""A prediction of how much arms carry, and what the measurement that followed says of it.

The prediction is a load sweep on the modelled target, decided like any other, with its interval widened by what
calibration could not average away. It is written down, with its time, before the first run that measures.
"""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

from scheduler_core.spec.base import Spec
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.studies import PredictionSpec
from scheduler_core.spec.target import Profile
from scheduler_core.verdict.schema import ArmCapacity, SweepVerdict, Verdict
from scheduler_core.verdict.wording import digits, percent

PREDICTED, MEASURED = 0, 1
STAGES = ("prediction", "measurement")
_MOST_BIAS = 0.9

Label = Literal["better", "worse", "same", "undecided"]


class ArmPrediction(Spec):
    """How much an arm carries, with its interval; None where the loads do not resolve it in all, or in a repeat."""

    arm: str
    capacity: float | None
    low: float | None
    high: float | None
    knee: float | None
    sentence: str


class Contest(Spec):
    """Whether a candidate carries more than the baseline: the ratio of capacities less 1, with its interval."""

    candidate: str
    label: Label
    change: float | None
    low: float | None
    high: float | None


class Prediction(Spec):
    """What was written down: by which profile, when (ISO 8601), of which experiment, and what it says."""

    schema_version: Literal["headway-prediction/1"] = "headway-prediction/1"
    written_at: str
    profile: str
    profile_digest: str
    experiment: str
    experiment_digest: str
    bias_share: float
    unit: str
    baseline: str
    arms: list[ArmPrediction]
    contests: list[Contest]
    sentence: str

    @property
    def winner(self) -> str | None:
        """The arm that is predicted to carry most for sure; None where none stands out."""
        return _winner(self.baseline, self.contests)


class ArmOutcome(Spec):
    """One arm, predicted and measured; ``error_share`` is predicted / measured - 1.

    ``held`` is whether the intervals meet; None where there are not two.
    """

    arm: str
    predicted: ArmPrediction
    measured: ArmPrediction
    error_share: float | None
    held: bool | None
    sentence: str


class Outcome(Spec):
    """What the measurement says of the prediction, arm by arm and of the winner."""

    arms: list[ArmOutcome]
    contests: list[Contest]
    winner: Literal["confirmed", "refuted", "undecided"]
    sentence: str


class PredictionResult(Spec):
    """What a study of a prediction has so far; the prediction is never changed once it is there."""

    prediction: Prediction
    outcome: Outcome | None = None

    @property
    def report(self) -> list[str]:
        """Sentences for a person: what was predicted, when, and what came of it."""
        made = self.prediction
        said = f"Predicted at {made.written_at} from profile {made.profile}: {made.sentence}."
        return [said, "Not measured yet." if self.outcome is None else f"Measured: {self.outcome.sentence}."]


def modelled(spec: PredictionSpec) -> ExperimentSpec:
    """The sweep on the model: the same workload, arms, loads and repeats."""
    form = spec.experiment.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    name = f"{spec.name[:50].rstrip()} predicted"
    return parse(
        ExperimentSpec, {**form, "name": name, "target": {"modelled": {"profile": spec.profile, "noise": True}}}
    )


def write_down(spec: PredictionSpec, profile: Profile, verdict: Verdict, *, written_at: str) -> Prediction:
    """The prediction that ``verdict``, of the sweep on the model, makes."""
    deviations = NormalDist().inv_cdf(0.5 + spec.experiment.goal.confidence / 2)
    bias = min(_MOST_BIAS, deviations * profile.held_out_bias_share)
    contests = [_contest(sweep) for sweep in verdict.sweeps if sweep.candidate is not None]
    arms = [_widened(arm, bias) for arm in _arms(verdict)]
    baseline = verdict.sweeps[0].baseline
    return Prediction(
        written_at=written_at,
        profile=profile.name,
        profile_digest=profile.digest(),
        experiment=spec.name,
        experiment_digest=spec.experiment.digest(),
        bias_share=bias,
        unit=verdict.sweeps[0].unit,
        baseline=baseline,
        arms=arms,
        contests=contests,
        sentence=_said(arms, baseline, contests, verdict.sweeps[0].unit),
    )


def compare(prediction: Prediction, verdict: Verdict) -> Outcome:
    """What the measured sweep of the same experiment says of ``prediction``."""
    measured = {arm.arm: _widened(arm, 0.0) for arm in _arms(verdict)}
    arms = [_outcome(arm, measured[arm.arm], prediction.unit) for arm in prediction.arms if arm.arm in measured]
    contests = [_contest(sweep) for sweep in verdict.sweeps if sweep.candidate is not None]
    winner = _judged(prediction.contests, contests)
    found = _winner(prediction.baseline, contests)
    said = f"{found} carries most" if found else "no arm surely carries most"
    lead = {"confirmed": "confirmed", "refuted": "refuted", "undecided": "neither confirmed nor refuted"}[winner]
    return Outcome(
        arms=arms,
        contests=contests,
        winner=winner,
        sentence=f"{lead}: {said}, as measured; " + "; ".join(arm.sentence for arm in arms),
    )


def _arms(verdict: Verdict) -> list[ArmCapacity]:
    """Each arm once: the baseline stands in every sweep."""
    return list({arm.arm: arm for sweep in verdict.sweeps for arm in sweep.arms}.values())


def _widened(arm: ArmCapacity, bias: float) -> ArmPrediction:
    """``arm`` with its interval widened: were all steps that much longer, it would carry that much less."""
    known = arm.resolved == "within" and arm.capacity is not None
    return ArmPrediction(
        arm=arm.arm,
        capacity=arm.capacity if known else None,
        low=arm.low / (1 + bias) if known and arm.low is not None else None,
        high=arm.high / (1 - bias) if known and arm.high is not None else None,
        knee=arm.knee,
        sentence=arm.sentence,
    )


def _contest(sweep: SweepVerdict) -> Contest:
    gate = sweep.gates[0] if sweep.gates else None
    assert sweep.candidate is not None  # the caller leaves sensitivities out
    if gate is None or gate.change is None or gate.label == "undecided":  # one pair alone shows no spread
        return Contest(candidate=sweep.candidate, label="undecided", change=None, low=None, high=None)
    interval = gate.interval
    low, high = (gate.change, gate.change) if interval is None else (interval.low, interval.high)
    label: Label = "better" if low > 0 else "worse" if high < 0 else "undecided"
    if label == "undecided" and -gate.margin < low and high < gate.margin:
        label = "same"
    return Contest(candidate=sweep.candidate, label=label, change=gate.change, low=low, high=high)


def _winner(baseline: str, contests: Sequence[Contest]) -> str | None:
    better = [contest for contest in contests if contest.label == "better"]
    if better:
        return max(better, key=lambda contest: contest.change or 0.0).candidate
    return baseline if contests and all(contest.label == "worse" for contest in contests) else None


def _judged(predicted: Sequence[Contest], measured: Sequence[Contest]) -> Literal["confirmed", "refuted", "undecided"]:
    """Confirmed when every contest ended as predicted, refuted when one surely ended otherwise."""
    found = {contest.candidate: contest.label for contest in measured}
    pairs = [(contest.label, found.get(contest.candidate, "undecided")) for contest in predicted]
    if any(expected != came and "undecided" not in (expected, came) for expected, came in pairs):
        return "refuted"
    return "confirmed" if pairs and all(expected == came != "undecided" for expected, came in pairs) else "undecided"


def _outcome(predicted: ArmPrediction, measured: ArmPrediction, unit: str) -> ArmOutcome:
    error = predicted.capacity / measured.capacity - 1 if predicted.capacity and measured.capacity else None
    held = None if error is None else _meet(predicted, measured)
    found = {True: ", intervals meet", False: ", intervals lie apart", None: ""}[held]
    words = "" if error is None else f" ({percent(error)}{found})"
    sentence = f"{predicted.arm} predicted {_amount(predicted, unit)}, measured {_amount(measured, unit)}{words}"
    return ArmOutcome(
        arm=predicted.arm, predicted=predicted, measured=measured, error_share=error, held=held, sentence=sentence
    )


def _meet(one: ArmPrediction, other: ArmPrediction) -> bool | None:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low <= other.high and other.low <= one.high


def _said(arms: Sequence[ArmPrediction], baseline: str, contests: Sequence[Contest], unit: str) -> str:
    carried = ", ".join(f"{arm.arm} {_amount(arm, unit)}" for arm in arms)
    if not contests:
        return carried
    winner = _winner(baseline, contests)
    return f"{carried}; {winner} carries most" if winner else f"{carried}; no arm surely carries most"


def _amount(arm: ArmPrediction, unit: str) -> str:
    if arm.capacity is None:
        return "outside the loads"
    if arm.low is None or arm.high is None:
        return f"{digits(arm.capacity)} {unit} without an interval"
    return f"{digits(arm.capacity)} [{digits(arm.low)}, {digits(arm.high)}] {unit}"
