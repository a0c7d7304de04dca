"""Quantile tables against SciPy, and integer rounding by hand."""

import _pydecimal
import decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scheduler_core.spec.workload import Length, Lognormal, Quantiles, Uniform
from scheduler_core.workload.distributions import UNIT, Table, gamma, length_draw, lognormal, quantile_table, scaled
from scheduler_core.workload.uniform import ONE

BULK = (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
TAILS = (1e-6, 1 - 1e-6, 1 - 1e-9)


def at(table: Table, share: float) -> float:
    return table.at(int(share * ONE)) / UNIT


@pytest.mark.parametrize("shape", [0.01, 0.05, 0.25, 0.5, 1.0, 2.5, 10.0, 100.0])
def test_gamma_quantiles_equal_those_of_scipy(shape: float) -> None:
    """Values below 1e-9 of the mean (sub-nanosecond gaps at any rate a machine can serve) are compared absolutely."""
    table = gamma(shape)
    reference = stats.gamma(shape, scale=1 / shape)
    assert [at(table, share) for share in BULK] == pytest.approx(reference.ppf(BULK), rel=1e-4, abs=1e-9)
    assert [at(table, share) for share in TAILS] == pytest.approx(reference.ppf(TAILS), rel=1e-3, abs=1e-9)
    assert float(table.mean()) == pytest.approx(1, abs=1e-9)


def test_gamma_of_shape_one_is_exponential() -> None:
    """Closed form: the quantile of u is -ln(1 - u)."""
    assert [at(gamma(1.0), share) for share in BULK] == pytest.approx(-np.log1p(-np.array(BULK)), rel=1e-4)


@pytest.mark.parametrize("shape", [0.01, 0.25, 1.0, 4.0, 100.0])
def test_gamma_table_has_the_variance_of_the_distribution(shape: float) -> None:
    """Coefficient of variation 1 / sqrt(shape), integrated exactly over the linear pieces."""
    table = gamma(shape)
    second = sum(
        Fraction(right - left, 3 * ONE) * (low * low + low * high + high * high)
        for (left, low), (right, high) in pairwise(zip(table.cumulative, table.values, strict=True))
    )
    assert float(second / UNIT**2 - 1) == pytest.approx(1 / shape, rel=1e-3)


@pytest.mark.parametrize(("mean", "stdev"), [(100.0, 50.0), (500.0, 5000.0), (1000.0, 1.0), (2048.0, 2048.0)])
def test_lognormal_quantiles_equal_those_of_scipy(mean: float, stdev: float) -> None:
    sigma = np.sqrt(np.log1p((stdev / mean) ** 2))
    reference = stats.lognorm(sigma, scale=mean / np.exp(sigma**2 / 2))
    assert [at(lognormal(mean, stdev), share) for share in BULK] == pytest.approx(reference.ppf(BULK), rel=1e-4)
    assert [at(lognormal(mean, stdev), share) for share in TAILS] == pytest.approx(reference.ppf(TAILS), rel=1e-3)
    assert float(lognormal(mean, stdev).mean()) == pytest.approx(mean, rel=1e-9)


def test_lognormal_without_spread_is_its_mean() -> None:
    assert {lognormal(80.0, 0.0).at(draw) for draw in (0, ONE // 2, ONE - 1)} == {80 * UNIT}


def test_tables_do_not_depend_on_the_decimal_context_of_the_caller() -> None:
    """A program that computes prices with five digits must get the same plan."""
    expected = gamma(0.7), lognormal(300.0, 200.0)
    gamma.cache_clear()
    lognormal.cache_clear()
    with decimal.localcontext(decimal.Context(prec=5, rounding=decimal.ROUND_UP)):
        assert (gamma(0.7), lognormal(300.0, 200.0)) == expected


@given(st.sampled_from([0.01, 0.3, 1.0, 7.0, 100.0]), st.integers(0, ONE - 1), st.integers(0, ONE - 1))
def test_quantiles_never_fall(shape: float, one: int, other: int) -> None:
    low, high = sorted((one, other))
    table = gamma(shape)
    assert 0 <= table.at(low) <= table.at(high)


def test_quantile_table_is_linear_between_its_points() -> None:
    """Values 10, 20, 60: a quarter is 15, a half 20, three quarters 40; the mean is (15 + 40) / 2."""
    table = quantile_table(Quantiles(values=(10, 20, 60)))
    assert [at(table, share) for share in (0, 0.25, 0.5, 0.75)] == [10, 15, 20, 40]
    assert table.mean() == Fraction(55, 2)


def test_uniform_lengths_are_equally_likely_whole_numbers() -> None:
    """Of 5 values, each owns a fifth of the draws: the first draw of each, and the one before, are where fifths end."""
    draw = length_draw(Length(uniform=Uniform(low=3, high=7)))
    firsts = [-(-ONE * place // 5) for place in range(5)]
    assert [draw(first) // UNIT for first in firsts] == [3, 4, 5, 6, 7]
    assert [draw(first - 1) // UNIT for first in firsts[1:]] == [3, 4, 5, 6]
    assert draw(ONE - 1) == 7 * UNIT


def test_lognormal_lengths_are_cut_at_their_maximum() -> None:
    draw = length_draw(Length(lognormal=Lognormal(mean=100, stdev=100, maximum=150)))
    assert draw(ONE - 1) == 150 * UNIT
    assert draw(0) < 100 * UNIT


@pytest.mark.parametrize(
    ("value", "scale", "tokens"),
    [(10, "1/4", 3), (9, "1/4", 2), (1, "1/4", 1), (2, "1/4", 1), (100, "1/3", 33), (5, "3/2", 8), (0, "1", 1)],
)
def test_scaling_rounds_half_up_and_never_to_nothing(value: int, scale: str, tokens: int) -> None:
    assert scaled(value * UNIT, Fraction(scale)) == tokens


@pytest.mark.parametrize("power", [-30, -7, -1, 0, 1, 3])
def test_decimal_functions_agree_with_the_reference_implementation(power: int) -> None:
    """The tables rest on ``exp``, ``ln`` and ``sqrt`` being correctly rounded: C and pure Python must agree."""
    reference = _pydecimal.Context(prec=40)
    for mantissa in range(1, 40, 7):
        text = f"{mantissa}.{mantissa * 7919}e{power}"
        with decimal.localcontext(decimal.Context(prec=40)):
            found = decimal.Decimal(text)
            values = [str(found.ln()), str(found.sqrt()), str((found % 50).exp()), str((-found % 50).exp())]
        other = reference.create_decimal(text)
        part, minus = reference.remainder(other, 50), reference.remainder(reference.minus(other), 50)
        assert values == [
            str(other.ln(reference)),
            str(other.sqrt(reference)),
            str(part.exp(reference)),
            str(minus.exp(reference)),
        ]
