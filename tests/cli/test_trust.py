"""What a run says of the model, on a terminal."""

from headway.cli.trust import lines
from scheduler_core.evidence.prediction import (
    AgainstModel,
    Band,
    Divergence,
    FigureError,
    KindOfSteps,
    Predicted,
    StepAside,
)

BESIDE = AgainstModel(
    profile="mine",
    profile_digest="d",
    steps=120,
    measured_ms=1000,
    predicted_ms=950,
    error_share=-0.05,
    host_measured_ms=80,
    host_predicted_ms=90,
    extrapolated_share=0.25,
    kinds=[
        KindOfSteps(
            kind="decode",
            decoding=(8, 15),
            steps=100,
            measured_ms=800,
            predicted_ms=740,
            error_share=-0.075,
            of_error_share=0.8,
        )
    ],
    divergence=Divergence(steps_equal=7, measured=StepAside(step=7, planned_ms=40, tokens={3: 1}), predicted=None),
    figures={"tpot_mean_ms": FigureError(measured=10, predicted=9.5, error_share=-0.05)},
)
PREDICTED = Predicted(
    error_share=0.098,
    bands={"ttft_mean_ms": Band(low=25, high=32.25)},
    extrapolated={"prefill_tokens": 4096},
    extrapolated_share=0.5,
)


def test_a_run_of_kernels_says_where_the_model_is_off() -> None:
    said = "\n".join(lines({"against_model": BESIDE.canonical(), "predicted": None}))
    assert "profile mine: 120 steps took 1,000 ms, predicted 950 ms (-5.0%)" in said
    assert "decisions part after 7 steps" in said
    assert "extrapolated: 25.0% of the steps" in said
    assert "8-15 decoding     100 steps    -7.5%  80% of the error" in said
    assert "measured 10  predicted 9.5  -5.0%" in said


def test_a_modelled_run_says_its_bands_and_what_is_extrapolated() -> None:
    said = lines({"predicted": PREDICTED.canonical(), "against_model": None})
    assert said[0] == "step times may be off by 9.8% together, as calibration measured"
    assert said[1] == "extrapolated: 50.0% of the steps lie beyond it (prefill_tokens up to 4096)"
    assert said[2].split() == ["ttft_mean_ms", "25", "to", "32.25"]


def test_without_a_model_nothing_is_said() -> None:
    assert lines({"predicted": None, "against_model": None}) == []
