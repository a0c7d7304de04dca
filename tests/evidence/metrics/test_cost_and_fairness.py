"""What a run cost and who got what, by figures worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from scheduler_core.evidence.finalise import summarise
from scheduler_core.evidence.metrics.cost import prices_per_hour
from scheduler_core.evidence.metrics.fairness import jain
from scheduler_core.evidence.schema import Absence, RunSummary
from scheduler_core.sim.alone import alone_e2e
from scheduler_core.spec.target import Affine, Profile
from scheduler_core.spec.workload import Tier
from tests.evidence.scenes import Scene, ns

TIERS = {"default": Tier()}


def two_tenants(*, fails: bool = False) -> Scene:
    """a0 and b1 arrive at 0 and 10; each is granted alone, of two tokens; ends at 10 and 60.

    a0: steps [0, 5] and [5, 10], E2E 10. b1: waits, steps [10, 50] and [50, 60], E2E 50.
    """
    scene = Scene(2)
    scene.arrive(0, 0, tenant="a")
    scene.arrive(1, 10, tenant="b")
    scene.admit(0, 0)
    scene.step(0, 5, [(0, 10)])
    scene.step(5, 10, [(0, 1)])
    scene.finish(0, 10)
    scene.admit(1, 10)
    scene.step(10, 50, [(1, 10)])
    scene.step(50, 60, [(1, 1)])
    if fails:
        scene.finish(1, 60, outcome="failed")
    else:
        scene.finish(1, 60)
    return scene


def summary(scene: Scene, price: float | None = None, **told: Any) -> RunSummary:
    records = list(scene.end(60))
    target = {"modelled": {"noise": True, "price_per_device_hour": price}}
    records[0] = replace(records[0], target=target)  # type: ignore[arg-type]
    return summarise(records, arm="a", repeat=0, tiers=TIERS, **told)


def test_cost_of_a_million_valid_tokens() -> None:
    """3.60 an hour is 0.001 a second; the window is 0 to 60 ms, so 6e-5 for 4 valid tokens: 15 per million."""
    found = summary(two_tenants(), 3.6).metrics
    assert found["cost_per_million_tokens"].value == pytest.approx(15.0)
    assert (found["cost_of_failures"].value, found["wasted_tokens_share"].value) == (0.0, 0.0)


def test_cost_of_failures() -> None:
    """One of two requests fails after its two tokens: half of the 6e-5 bought nothing, and 2 valid tokens cost 30."""
    found = summary(two_tenants(fails=True), 3.6).metrics
    assert found["cost_per_million_tokens"].value == pytest.approx(30.0)
    assert found["wasted_tokens_share"].value == found["wasted_work_share"].value == pytest.approx(0.5)
    assert found["cost_of_failures"].value == pytest.approx(3e-5)


def after_a0() -> Scene:
    """a0 has taken 10 prompt and 2 output tokens by 10 ms, when b1 arrives."""
    scene = Scene(2)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 5, [(0, 10)])
    scene.step(5, 10, [(0, 1)])
    scene.finish(0, 10)
    scene.arrive(1, 10)
    return scene


def test_work_for_a_request_that_fails_before_its_first_token_costs_too() -> None:
    """a0 takes 10 prompt and 2 output tokens; 4 of b1's 10 prompt tokens are computed, then it fails: 4 of 16 tokens.

    So a quarter of the 6e-5 bought nothing, although not one output token was lost.
    """
    scene = after_a0()
    scene.admit(1, 10)
    scene.step(10, 50, [(1, 4)])
    scene.finish(1, 60, outcome="failed")
    found = summary(scene, 3.6).metrics
    assert (found["wasted_work_share"].value, found["wasted_tokens_share"].value) == (0.25, 0.0)
    assert found["cost_of_failures"].value == pytest.approx(1.5e-5)


def test_what_was_found_in_a_cache_was_not_computed_and_what_was_lost_was_twice() -> None:
    """b1 finds 6 of its 10 prompt tokens, computes 4 for its first token, is preempted, computes all 11 that it has by
    then, 10 of them again, and fails.

    That is 4 + 10 + 2 of its tokens (the last step gives its second), beside 10 + 2 of a0: 16 of 28.
    """
    scene = after_a0()
    scene.admit(1, 10, hit=6)
    scene.step(10, 20, [(1, 4)])
    scene.preempt(1, 20)
    scene.admit(1, 30)
    scene.step(30, 50, [(1, 11, "recompute")])
    scene.finish(1, 60, outcome="failed")
    found = summary(scene, 3.6).metrics
    assert found["wasted_work_share"].value == pytest.approx(16 / 28)
    assert found["wasted_tokens_share"].value == pytest.approx(2 / 4)


def test_where_nothing_finished_all_that_was_paid_is_the_cost_of_failures() -> None:
    """Both fail, one before its first token: 6e-5 were paid, and a million valid tokens have no price."""
    scene = Scene(2)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 10, [(0, 10)])
    scene.finish(0, 60, outcome="failed")
    scene.arrive(1, 10)
    scene.finish(1, 60, outcome="rejected")
    found = summary(scene, 3.6).metrics
    assert found["cost_of_devices"].value == found["cost_of_failures"].value == pytest.approx(6e-5)
    assert found["cost_per_million_tokens"].absence is Absence.NOT_APPLICABLE


def test_without_a_price_cost_is_not_measured() -> None:
    figure = summary(two_tenants()).metrics["cost_per_million_tokens"]
    assert (figure.value, figure.absence, figure.note) == (None, Absence.NOT_MEASURED, "no price was declared")


def test_prices_of_targets() -> None:
    assert prices_per_hour({"torch": {"price_per_device_hour": 2.0}, "modelled": None}, []) == [2.0]
    assert prices_per_hour({"server": {"sources": [{"price_per_hour": 2.0}, {"price_per_hour": 1.5}]}}, []) == [2, 1.5]
    assert prices_per_hour({"server": {"sources": [{"price_per_hour": 2.0}, {}]}}, []) is None
    assert prices_per_hour({"torch": {}}, []) is None
    groups = {"fast": {"price_per_device_hour": 3.0}, "slow": {"price_per_device_hour": None}}
    cluster = {"modelled": {"price_per_device_hour": 1.0, "topology": {"groups": groups}}}
    assert prices_per_hour(cluster, ["fast", "slow", "slow"]) == [3.0, 1.0, 1.0]
    cluster["modelled"]["price_per_device_hour"] = None
    assert prices_per_hour(cluster, ["fast"]) == [3.0]
    assert prices_per_hour(cluster, ["fast", "slow"]) is None


def test_jain_s_index() -> None:
    """Equal values give 1; (1, 3): 16 / (2 x 10) = 0.8; one of four with everything 1/4."""
    assert jain([2, 2, 2]) == pytest.approx(1)
    assert jain([1, 3]) == pytest.approx(0.8)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)


def test_fairness_over_slowdowns() -> None:
    """Alone each takes 10 ms, so slowdowns are 1 and 5: Jain 36 / (2 x 26); mean 3, largest 5."""
    run = summary(two_tenants(), alone=lambda prompt, output: ns(10))
    assert run.metrics["fairness_jain"].value == pytest.approx(36 / 52)
    assert run.metrics["slowdown_mean_x"].value == pytest.approx(3)
    assert run.metrics["slowdown_max_x"].value == pytest.approx(5)
    assert run.classes["tenant b"].metrics["slowdown_mean_x"].value == pytest.approx(5)
    assert run.classes["tenant a"].metrics["token_share"].value == pytest.approx(0.5)


def test_a_tenant_that_finished_nothing_is_infinitely_slow() -> None:
    run = summary(two_tenants(fails=True), alone=lambda prompt, output: ns(10))
    figure = run.metrics["fairness_jain"]
    assert (figure.value, figure.absence) == (None, Absence.FAILED)
    assert "tenant b finished nothing" in figure.note
    assert run.metrics["fairness_service_jain"].value == pytest.approx(0.5)
    assert run.metrics["tenant_least_token_share"].value == 0
    assert run.classes["tenant b"].metrics["slowdown_mean_x"].absence is Absence.FAILED


def test_without_a_calibration_slowdown_is_not_measured() -> None:
    run = summary(two_tenants())
    assert run.metrics["fairness_jain"].absence is Absence.NOT_MEASURED
    assert run.metrics["fairness_service_jain"].value == pytest.approx(1)


def test_a_request_alone() -> None:
    """Prompt 100 in steps of 64 and 36, then 3 further tokens.

    Steps: 1000 + 64 x 10, 1000 + 36 x 10; decode 3 x (1000 + 5 + 2 x mean context 102.5, here 100 + 2 = 102).
    """
    cost = Affine(base_ns=1000, prefill_token_ns=10, decode_request_ns=5, context_token_ns=2)
    profile = Profile(
        name="p", model="m", device="d", dtype="f", cost=cost, residual_share=0.5, drift_share=0.5,
        held_out_error_share=0, domain={}, steps_measured=0, measured_on={},
    )  # fmt: skip
    assert alone_e2e(profile, 64)(100, 4) == 1640 + 1360 + 3 * (1005 + 2 * 102)
    assert alone_e2e(profile, 0)(100, 1) == 2000
    assert math.isclose(alone_e2e(profile, 0)(100, 1), 2000)
