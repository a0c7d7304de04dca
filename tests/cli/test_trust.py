"""What a run says of the model, on a terminal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_runner.run import predicted as predicting
from headway import profiles
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
from scheduler_core.spec.target import Profile
from tests.cli.conftest import EXPERIMENT, Headway

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


ONE_REQUEST = {"workload": {**EXPERIMENT["workload"], "requests": 1}, "repeats": 1}
CLUSTER = {"modelled": {"profile": "slow", "topology": {"groups": {"a": {"count": 2}}}}}


@pytest.mark.parametrize(
    ("policy", "target", "events"),
    [
        ({}, {"modelled": {"profile": "slow"}}, None),
        ({"execution": {"overlap": "two_stream"}}, {"modelled": {"profile": "slow"}}, None),
        ({"pools": {"layout": "replicas"}}, CLUSTER, None),
        ({"pools": {"layout": "replicas"}}, CLUSTER, {"cache_resets": [{"at_s": 100}]}),
    ],
    ids=["one instance", "overlapped steps", "a cluster", "a cluster with events"],
)
def test_every_modelled_run_has_bands(
    headway: Headway, written: Callable[..., Path], profile: Profile, policy: Any, target: Any, events: Any
) -> None:
    """A lone request's times are step times: its band is two standard errors of 5 % (3 % bias, 4 % drift) wide."""
    profiles.keep(profile.model_copy(update={"held_out_bias_share": 0.03, "drift_share": 0.04}))
    arms = {"baseline": {"policy": "vllm_v1", **policy}, "small": {"policy": "vllm_v1", "batch": {"size": 8}, **policy}}
    changes = {**ONE_REQUEST, "arms": arms, "target": target} | ({} if events is None else {"events": events})
    for run in json.loads(headway("play", written(**changes), "--json").out)["runs"]:
        found = run["predicted"]
        assert (found["error_share"], found["unbanded"]) == (pytest.approx(0.098), "")
        for name in ("ttft_mean_ms", "tpot_p50_ms", "e2e_mean_ms"):
            value, band = run["metrics"][name]["value"], found["bands"][name]
            assert (band["low"] / value, band["high"] / value) == pytest.approx((0.902, 1.098), rel=1e-4)


def test_a_run_too_long_for_bands_says_why(
    headway: Headway, written: Callable[..., Path], profile: Profile, monkeypatch: Any
) -> None:
    monkeypatch.setattr(predicting, "STEPS", 10)
    monkeypatch.setattr(predicting, "FAST_REQUESTS", 10)
    profiles.keep(profile)
    arms = {
        "baseline": {"policy": "vllm_v1"},
        "ahead": {"policy": "vllm_v1", "execution": {"overlap": "schedule_ahead"}},
    }
    ran = headway("play", written(arms=arms, repeats=1, target={"modelled": {"profile": "slow"}}), "--json")
    said = {run["arm"]: "\n".join(lines(run)) for run in json.loads(ran.out)["runs"]}
    assert "no bands: it would be played three times more, and it has more than 10 requests" in said["baseline"]
    assert "no bands: its steps overlap, so that it would be played step by step" in said["ahead"]


def test_a_profile_that_nobody_measured_has_no_bands(headway: Headway, written: Callable[..., Path]) -> None:
    target = {"modelled": {"profile": "llama-3.1-8b@h100"}}
    (run, _) = json.loads(headway("play", written(repeats=1, target=target), "--json").out)["runs"]
    assert lines(run) == ["no bands: nothing was measured that says how far off llama-3.1-8b@h100 is"]
