"""A measured run beside the model, and bands around what the model says."""

from typing import Any

import pytest

from scheduler_core.evidence.schema import Figure
from scheduler_core.fidelity.bands import Scene, bands, off, played_fast, quantile, scaled, step_error_share
from scheduler_core.fidelity.difference import against_model, divergence
from scheduler_core.fidelity.domain import Domain
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.sim.cost import StepCost
from scheduler_core.spec.target import HostTime
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.types.records import Step
from scheduler_core.types.shape import StepShape

MS = 1_000_000
CAPACITY = Capacity(100, 400)
REQUESTS = [request(index, 10 + index, 6, at_ms=4.0 * index) for index in range(8)]


def step(number: int, grants: list[Any], *, begins: float, ends: float, gap: float = 0.0, digest: str = "") -> Step:
    """A step planned at ``begins`` ms, after ``gap`` ms of host work, whose forward took all of its time but 1 ms."""
    lanes: list[Any] = [("compute", "device", round((begins + 1) * MS), round(ends * MS))]
    if gap:
        lanes.insert(0, ("host_gap", "host", round((begins - gap) * MS), round(begins * MS)))
    return Step(
        id=number, digest=digest or str(number), planned_ns=round(begins * MS), available_ns=round(ends * MS),
        grants=grants, lanes=lanes, stalled=[], kv_used=0, kv_cached=0, kv_free=0, waiting=0, running=0, paused=0,
        budget=0,
    )  # fmt: skip


def test_time_is_set_beside_what_the_profile_says_by_kind_of_step() -> None:
    """The profile: 4 ms a step, 1 ms a decoding request, of which the host 1 ms a step and nothing else.

    Step 0 decodes 2: 6 ms predicted and, from the start of its gap at 9 ms to 16 ms, 7 measured.
    Step 1 decodes 3, the same kind (2 to 3): 7 predicted, 7 measured (16 to 23).
    Step 2 computes a prompt alone: 4 predicted, after idle time 12 measured (30 to 42).
    Errors: the decodes 13 against 14 ms, the prompt 4 against 12: 1 ms and 8 ms of 9 in all.
    """
    model = profile(base_ms=3, decode_request_ms=1).model_copy(
        update={"host": HostTime(base_ns=MS), "domain": {"decode_requests": 2}}
    )
    decode = [(0, 0, 9, 1, "decode", 1, 0), (1, 0, 9, 1, "decode", 1, 0)]
    steps = [
        step(0, decode, begins=10, ends=16, gap=1),
        step(1, [*decode, (2, 0, 9, 1, "decode", 1, 0)], begins=17, ends=23, gap=1),
        step(2, [(3, 0, 0, 5, "prefill", 1, 0)], begins=30, ends=42),
    ]
    found = against_model(steps, steps, model, figures={}, predictions={})
    assert (found.measured_ms, found.predicted_ms) == (26, 17)
    assert [(kind.kind, kind.decoding, kind.steps, kind.measured_ms, kind.predicted_ms) for kind in found.kinds] == [
        ("prompt", (0, 0), 1, 12, 4),
        ("decode", (2, 3), 2, 14, 13),
    ]
    assert [kind.of_error_share for kind in found.kinds] == pytest.approx([8 / 9, 1 / 9])
    assert (found.host_measured_ms, found.host_predicted_ms) == (4, 2)
    assert found.extrapolated_share == pytest.approx(1 / 3)
    assert found.divergence is None


def test_the_first_decision_that_differs_is_shown_from_both_sides() -> None:
    same = step(0, [], begins=0, ends=1)
    real = [same, step(1, [(4, 0, 0, 7, "prefill", 0, 0)], begins=5, ends=6, digest="a")]
    model = [same, step(1, [(4, 0, 0, 3, "prefill", 0, 0)], begins=3, ends=6, digest="b"), same]
    parted = divergence(real, model)
    assert parted is not None
    assert parted.steps_equal == 1
    assert parted.measured is not None and parted.measured.tokens == {4: 7}
    assert parted.predicted is not None and parted.predicted.planned_ms == 3
    ended = divergence(real[:1], model)
    assert ended is not None and ended.measured is None
    assert divergence(real, real) is None


def test_a_model_beside_itself_has_no_error() -> None:
    model = profile(base_ms=2, prefill_token_ms=0.1, decode_request_ms=0.3)
    played = play(policy_spec("vllm_v1"), REQUESTS, capacity=CAPACITY, target=model)
    steps = played.sink.of(Step)
    figure = {"ttft_mean_ms": Figure(value=3.0, unit="ms", n=8), "none": Figure(value=None, unit="ms", n=0)}
    found = against_model(steps, steps, model, figures=figure, predictions=figure)
    assert found.error_share == pytest.approx(0, abs=1e-9)
    assert {name: item.error_share for name, item in found.figures.items()} == {"ttft_mean_ms": 0}


def test_bands_reach_as_far_as_step_times_may_be_off() -> None:
    """Errors of 3 % by kind and 4 % of drift: together 5 %, two standard errors are 9.8 %. One request alone: its TTFT
    and TPOT are step times, so the band is that wide; a figure that is not known to move gets none.
    """
    model = profile(base_ms=2, prefill_token_ms=0.1).model_copy(
        update={"held_out_bias_share": 0.03, "drift_share": 0.04}
    )
    assert step_error_share(model) == pytest.approx(0.098)
    scene = Scene(
        build=lambda: build_policy(policy_spec("vllm_v1"), CAPACITY), requests=[request(0, 10, 5)], prefix_block_size=16
    )
    figures = {name: Figure(value=100.0, unit="ms", n=1) for name in ("ttft_p50_ms", "tpot_mean_ms", "steps")}
    found = bands(lambda way: played_fast(scene, off(model, way)), figures)
    assert set(found) == {"ttft_p50_ms", "tpot_mean_ms"}
    for band in found.values():
        assert (band.low, band.high) == pytest.approx((90.2, 109.8), rel=1e-3)


def test_a_scaled_profile_takes_that_much_longer() -> None:
    model = profile(base_ms=2, prefill_token_ms=0.1).model_copy(
        update={"host": HostTime(base_ns=10_000, wake_knots=((1_000, 300), (3_000, 700)))}
    )
    shape = StepShape(7, 3, 40, 28)
    slow = StepCost(scaled(model, 1.5))
    assert slow.step_ns(shape, 0) == round(1.5 * StepCost(model).step_ns(shape, 0))
    assert slow.wake_ns(2_000) == 750


def test_a_step_outside_the_measured_domain_is_counted_and_named() -> None:
    domain = Domain(profile().model_copy(update={"domain": {"prefill_tokens": 100, "decode_requests": 8}}))
    for shape in (StepShape(100, 8, 0, 0), StepShape(101, 0, 0, 0), StepShape(300, 9, 0, 0), StepShape(0, 1, 9, 0)):
        domain.take(shape)
    assert domain.share == 0.5
    assert domain.extrapolated == {"prefill_tokens": 300, "decode_requests": 9}


def test_quantiles_interpolate_linearly() -> None:
    """Between 1, 2, 4 and 10 the median is 3; the 95th percentile lies 85 % of the way from 4 to 10, at 9.1."""
    assert quantile([10, 1, 4, 2], 0.5) == 3
    assert quantile([10, 1, 4, 2], 0.95) == pytest.approx(9.1)
