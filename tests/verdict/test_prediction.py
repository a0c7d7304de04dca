"""Predictions: what is written down before a measurement, and what the measurement says of it."""

from typing import Any

import pytest

from scheduler_core.spec.parse import parse
from scheduler_core.spec.profiles import CPU_SMALL
from scheduler_core.spec.studies import PredictionSpec
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.prediction import PredictionResult, compare, modelled, write_down
from scheduler_core.verdict.schema import ArmCapacity, Gate, Interval, SweepVerdict, Verdict
from tests.samples import WORKLOAD

EXPERIMENT: dict[str, Any] = {
    "name": "budgets", "workload": WORKLOAD, "target": {"server": {"launch": "small"}},
    "arms": {name: {"policy": "vllm_v1", "batch": {"token_budget": int(name[1:])}} for name in ("b2048", "b256")},
    "baseline": "b2048", "sweep": {"loads": [1, 2, 4]},
}  # fmt: skip
SPEC = parse(PredictionSpec, {"profile": "mine", "experiment": EXPERIMENT})
PROFILE = CPU_SMALL.model_copy(update={"held_out_bias_share": 0.05})
BIAS = 1.96 * 0.05  # two-sided, at the goal's 95 %


def swept(old: tuple[float, float, float], new: tuple[float, float, float], ratio: tuple[float, float]) -> Verdict:
    """A decided sweep: each arm's capacity with its interval, and the interval of their ratio less 1."""
    arms = [
        ArmCapacity(arm=name, low=low, capacity=mid, high=high, resolved="within", knee=None, sentence=name)
        for name, (low, mid, high) in (("b2048", old), ("b256", new))
    ]
    change = new[1] / old[1] - 1
    gate = Gate(
        metric="concurrency_capacity", role="primary", unit="requests/s", better="higher", margin=0.05,
        baseline=old[1], candidate=new[1], change=change, label="same", state="undecided", sentence="",
        interval=Interval(low=ratio[0], high=ratio[1], confidence=0.95),
    )  # fmt: skip
    sweep = SweepVerdict(
        baseline="b2048", candidate="b256", unit="requests/s", loads=[1, 2, 4], attainment=0.95, repeats=5, arms=arms,
        decision=None, headline="", obstacles=[], gates=[gate], conditions=[], next_steps=[], exit_code=10,
    )  # fmt: skip
    return Verdict(experiment="budgets", comparisons=[], sweeps=[sweep], identical_outputs="", exit_code=10)


PREDICTED = write_down(
    SPEC, PROFILE, swept((1.9, 2.0, 2.1), (2.4, 2.5, 2.6), (0.2, 0.3)), written_at="2026-11-30T12:00:00+00:00"
)


def test_the_model_is_swept_as_the_server_will_be() -> None:
    swept_model = modelled(SPEC)
    assert swept_model.target.modelled is not None and swept_model.target.modelled.profile == "mine"
    assert swept_model.target.modelled.noise
    for field in ("workload", "arms", "baseline", "repeats", "sweep", "goal"):
        assert getattr(swept_model, field) == getattr(SPEC.experiment, field)


def test_a_prediction_is_widened_by_what_calibration_cannot_average_away() -> None:
    """Were all steps 1.96 x 5 % longer, an arm would carry that much less: 1.9 / 1.098 to 2.1 / 0.902."""
    old, new = PREDICTED.arms
    assert old.capacity == 2.0
    assert old.low == pytest.approx(1.9 / (1 + BIAS), rel=1e-4) and old.high == pytest.approx(
        2.1 / (1 - BIAS), rel=1e-4
    )
    assert PREDICTED.winner == "b256" and new.capacity == 2.5
    assert PREDICTED.profile_digest == PROFILE.digest() and PREDICTED.experiment_digest == SPEC.experiment.digest()
    assert PREDICTED.sentence.endswith("b256 carries most")


@pytest.mark.parametrize(
    ("new", "ratio", "winner"),
    [
        ((2.3, 2.4, 2.5), (0.1, 0.25), "confirmed"),
        ((1.5, 1.6, 1.7), (-0.3, -0.1), "refuted"),
        ((1.95, 2.0, 2.05), (-0.03, 0.03), "refuted"),  # surely the same, where one was to win
        ((1.8, 2.2, 2.6), (-0.1, 0.3), "undecided"),
    ],
)
def test_what_a_measurement_says(new: Any, ratio: Any, winner: str) -> None:
    outcome = compare(PREDICTED, swept((1.7, 1.8, 1.9), new, ratio))
    assert outcome.winner == winner
    old = outcome.arms[0]
    assert old.error_share == pytest.approx(2.0 / 1.8 - 1)
    assert old.held is True  # 1.73 to 2.33 meets 1.7 to 1.9
    said = PredictionResult(prediction=PREDICTED, outcome=outcome).report
    assert "2026-11-30T12:00:00" in said[0] and "(+11.1 %, intervals meet)" in said[1]


def test_one_pair_confirms_nothing() -> None:
    """It has a ratio and no interval, as an exact answer has; but its gate says that nothing is decided."""
    found = swept((1.7, 1.8, 1.9), (2.3, 2.4, 2.5), (0.1, 0.25))
    (sweep,) = found.sweeps
    gates = [sweep.gates[0].model_copy(update={"interval": None, "label": label}) for label in ("undecided", "better")]
    single, exact = (
        compare(PREDICTED, found.model_copy(update={"sweeps": [sweep.model_copy(update={"gates": [gate]})]}))
        for gate in gates
    )
    assert (single.winner, exact.winner) == ("undecided", "confirmed")


def test_intervals_that_lie_apart_are_said_to() -> None:
    outcome = compare(PREDICTED, swept((1.0, 1.1, 1.2), (2.3, 2.4, 2.5), (0.9, 1.5)))
    assert (outcome.winner, outcome.arms[0].held, outcome.arms[1].held) == ("confirmed", False, True)


def test_a_repeat_outside_the_loads_leaves_no_interval() -> None:
    """Then nobody can say whether intervals meet, and no interval of width 0 is made up."""
    found = swept((1.7, 1.8, 1.9), (2.3, 2.4, 2.5), (0.1, 0.25))
    (sweep,) = found.sweeps
    arms = [arm.model_copy(update={"low": None, "high": None}) for arm in sweep.arms]
    outcome = compare(PREDICTED, found.model_copy(update={"sweeps": [sweep.model_copy(update={"arms": arms})]}))
    old = outcome.arms[0]
    assert (old.measured.low, old.measured.high, old.held) == (None, None, None)
    assert old.sentence.endswith("measured 1.8 requests/s without an interval (+11.1 %)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sweep": None}, "experiment.sweep: a prediction is of how much each arm carries"),
        ({"target": {"modelled": {}}}, "experiment.target: is modelled"),
        ({"arms": {"a": {"policy": "as_served"}}, "baseline": "a"}, "as_served says nothing to predict from"),
    ],
)
def test_what_cannot_be_predicted_is_refused(change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(PredictionSpec, {"experiment": EXPERIMENT | change})
