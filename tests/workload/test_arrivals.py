"""Arrival processes: times by hand where there is a closed form, statistics where there is chance."""

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Arrivals
from scheduler_core.types.time import NS_PER_S
from scheduler_core.workload.arrivals import arrival_times
from scheduler_core.workload.distributions import UNIT, gamma
from scheduler_core.workload.uniform import Stream

KINDS: dict[str, dict[str, Any]] = {
    "constant": {"constant": {"rate_rps": 3}},
    "poisson": {"poisson": {"rate_rps": 3}},
    "gamma": {"gamma": {"rate_rps": 3, "burstiness": 0.25}},
    "quantiles": {"quantiles": {"gaps": {"values": [0, 1, 5]}, "rate_rps": 3}},
    "ramp": {"ramp": {"from_rps": 1, "to_rps": 5, "over_s": 60}},
    "step": {"step": {"stages": [{"rate_rps": 1, "for_s": 30}, {"rate_rps": 6, "for_s": 5}]}},
}


def times(data: dict[str, Any], count: int, seed: int = 1, thin: Fraction = Fraction(1)) -> list[int]:
    return list(arrival_times(parse(Arrivals, data), count, seed=seed, thin=thin))


def unit_points(count: int, seed: int) -> list[float]:
    """Points of a unit-rate Poisson process, from the same stream."""
    stream = Stream(seed, "gap")
    return list(np.cumsum([gamma(1.0).at(stream.at(index)) / UNIT for index in range(count)]))


def test_constant_arrivals_never_drift() -> None:
    """3 per second: request 3 k arrives at exactly k seconds, those between are cut to whole ns."""
    found = times(KINDS["constant"], 30_001)
    assert found[:5] == [0, 333_333_333, 666_666_666, NS_PER_S, 1_333_333_333]
    assert found[30_000] == 10_000 * NS_PER_S


@pytest.mark.parametrize("kind", KINDS)
def test_times_rise_and_fewer_requests_are_the_first_of_more(kind: str) -> None:
    found = times(KINDS[kind], 2000)
    assert all(before <= after for before, after in pairwise(found))
    assert found[0] >= 0
    assert times(KINDS[kind], 700) == found[:700]


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gamma_gaps_have_their_mean_and_variation(burstiness: float, cv: float) -> None:
    """Coefficient of variation 1 / sqrt(burstiness); 20,000 gaps put both within 6 % at these seeds and any near."""
    gaps = np.diff(times({"gamma": {"rate_rps": 50, "burstiness": burstiness}}, 20_001)) / NS_PER_S
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06)
    assert stats.kstest(gaps, stats.gamma(burstiness, scale=1 / 50 / burstiness).cdf).pvalue > 0.001


def test_poisson_is_gamma_of_burstiness_one() -> None:
    assert times(KINDS["poisson"], 500) == times({"gamma": {"rate_rps": 3, "burstiness": 1}}, 500)


def test_quantile_gaps_are_scaled_to_the_rate() -> None:
    """Quantiles 0, 1, 5 have the mean (0.5 + 3) / 2 = 1.75; at 3 per second the unit is 1 / (3 * 1.75) s."""
    gaps = np.diff(times(KINDS["quantiles"], 20_001)) / NS_PER_S
    assert gaps.mean() == pytest.approx(1 / 3, rel=0.03)
    assert np.quantile(gaps, 0.5) == pytest.approx(1 / 3 / 1.75, rel=0.05)
    assert gaps.max() <= 5 / 3 / 1.75 + 1e-9


@given(st.floats(0, 20), st.floats(0.1, 20), st.floats(0.5, 200), st.integers(0, 1000))
def test_ramp_inverts_its_cumulative_rate(start: float, end: float, over: float, seed: int) -> None:
    """L(t) = a t + (b - a) t^2 / 2T up to T, then rate b: at each arrival L is the unit process's point."""
    found = times({"ramp": {"from_rps": start, "to_rps": end, "over_s": over}}, 60, seed)

    def cumulative(t: float) -> float:
        inside = min(t, over)
        return start * inside + (end - start) * inside**2 / (2 * over) + end * max(0.0, t - over)

    reached = [cumulative(at / NS_PER_S) for at in found]
    assert reached == pytest.approx(unit_points(60, seed), rel=1e-6, abs=1e-6)


def test_step_inverts_its_cumulative_rate() -> None:
    """1/s for 10 s, silence for 5 s, then 4/s: 10 requests are due by 10 s, none fall into the silence."""
    stages = [{"rate_rps": 1, "for_s": 10}, {"rate_rps": 0, "for_s": 5}, {"rate_rps": 4, "for_s": 1}]
    found = [at / NS_PER_S for at in times({"step": {"stages": stages}}, 200, seed=5)]
    expected = [point if point < 10 else 15 + (point - 10) / 4 for point in unit_points(200, 5)]
    assert found == pytest.approx(expected, abs=1e-6)
    assert not [at for at in found if 10 <= at < 15]


def halved(data: Any) -> Any:
    """The same process with every rate halved."""
    if isinstance(data, dict):
        return {key: value / 2 if key.endswith("_rps") else halved(value) for key, value in data.items()}
    return [halved(item) for item in data] if isinstance(data, list) else data


@pytest.mark.parametrize("kind", KINDS)
def test_thinning_multiplies_every_rate(kind: str) -> None:
    found = times(KINDS[kind], 500, thin=Fraction(1, 2))
    assert found == times(halved(KINDS[kind]), 500)
    assert found != times(KINDS[kind], 500)
