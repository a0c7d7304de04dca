"""Intervals, Holm's levels and the second opinion, against figures worked out by hand or another way."""

import math

import numpy as np
import pytest

from scheduler_core.evidence.bootstrap import log_quantile_error
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.gates import holm
from scheduler_core.verdict.pairs import Changes, log_ratio, pairs_needed
from tests.verdict.arms import arms, experiment


def test_interval_is_students_t_over_pairs() -> None:
    """Log ratios 0.1, 0.2, 0.3, 0.2, 0.2: mean 0.2, s = sqrt(0.02 / 4) = 0.07071, half = 2.776 s / sqrt(5) = 0.0878."""
    evidence = Changes((0.1, 0.2, 0.3, 0.2, 0.2), 1.0, 1.2, exact=False)
    low, high = evidence.bounds(0.95)
    assert [low, high] == pytest.approx([0.2 - 0.0878, 0.2 + 0.0878], abs=1e-4)
    assert evidence.p_value(0.2 - 0.0878) == pytest.approx(0.05, abs=1e-3)


def test_holm_steps_down() -> None:
    """p 0.01, 0.04, 0.03 at 5 %: 0.01 <= 0.05 / 3, then 0.03 > 0.05 / 2, which holds for the rest."""
    assert holm([0.01, 0.04, 0.03], 0.05) == [pytest.approx(0.05 / 3), 0.025, 0.025]
    assert holm([0.001, 0.04, 0.002], 0.05) == [pytest.approx(0.05 / 3), 0.05, 0.025]


def test_zeros_and_infinities_have_a_ratio() -> None:
    assert log_ratio(0, 0, "ms") == 0
    assert log_ratio(0, 0.02, "ms") == pytest.approx(math.log(2))
    assert log_ratio(5, math.inf, "ms") == math.inf
    assert log_ratio(math.inf, math.inf, "ms") == 0


def test_pairs_needed_clears_the_border() -> None:
    """Spread 0.1, distance 0.05: t(0.975, 17) 0.1 / sqrt(18) = 0.0497 is the first below it."""
    assert pairs_needed(0.1, 0.05, 0.95) == 18
    assert pairs_needed(0.1, 0.0001, 0.95) is None


def test_bootstrap_error_grows_with_dependence() -> None:
    """Independent values: near the textbook error of a median of logs, 1.2533 s / sqrt(n). Runs of equals: larger."""
    draw = np.random.default_rng(1)
    values = draw.lognormal(3, 0.3, size=2000)
    error = log_quantile_error(values, 0.5)
    assert error == pytest.approx(1.2533 * 0.3 / math.sqrt(2000), rel=0.25)
    clumped = log_quantile_error(np.repeat(values[:100], 20), 0.5)
    assert clumped is not None and error is not None and clumped > 3 * error


def test_second_opinion_is_shown_and_never_decides() -> None:
    """Within-run errors of 10 % per run: the opinion is wide, mean +- 1.96 sqrt(10) 0.1 / 5; accept stands."""
    runs = [
        run.model_copy(update={"within_run_errors": {"ttft_p95_ms": 0.1}})
        for run in arms((0.70, 0.71, 0.69, 0.70, 0.70))
    ]
    found = decide(experiment(goal={"guard": {}}), runs).comparisons[0]
    assert found.decision == "accept"
    opinion = found.gates[0].second_opinion
    assert opinion is not None
    half = 1.96 * math.sqrt(10) * 0.1 / 5
    assert opinion.high == pytest.approx(0.7 * math.exp(half) - 1, abs=2e-3)
    assert opinion.low == pytest.approx(0.7 * math.exp(-half) - 1, abs=2e-3)
