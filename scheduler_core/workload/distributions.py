"""Distributions as integer quantile tables, so that a draw is the same integer everywhere.

``math.log`` and its kin may differ in the last place between platforms, and library samplers change their streams
between versions; either would give one spec two plans. Here a distribution is tabulated once with `decimal` (whose
``exp``, ``ln`` and ``sqrt`` are correctly rounded by specification) and sampled by inversion in integers: a uniform
64-bit draw is looked up in the cumulative column and the value interpolated linearly. With `CELLS` cells a quantile is
off by less than 1 in 10,000 (1 in 1,000 beyond the outermost millionth; checked against SciPy in the tests), and each
table is scaled so that its own mean is exact.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, InvalidOperation, Overflow, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from scheduler_core.spec.workload import Length, Quantiles
from scheduler_core.workload.uniform import BITS, ONE

UNIT = 1 << 32
"""Values are integers in units of 2**-32."""

CELLS = 4096

# Every attribute is set here: the context of the calling thread must not decide what is in a plan.
_CONTEXT = Context(
    prec=40,
    rounding=ROUND_HALF_EVEN,
    Emin=-999_999,
    Emax=999_999,
    capitals=1,
    clamp=0,
    traps=[InvalidOperation, DivisionByZero, Overflow],
)
_HALF = Decimal("0.5")

Draw = Callable[[int], int]
"""From a uniform draw in [0, 2**64) to a value in units of 2**-32."""


@dataclass(frozen=True, slots=True)
class Table:
    """A quantile function, linear between its points.

    ``cumulative`` rises from 0 to ``ONE``; ``values`` are in units of ``1 / UNIT`` and never fall.
    """

    cumulative: tuple[int, ...]
    values: tuple[int, ...]

    def at(self, draw: int) -> int:
        """The value below which a share ``draw / ONE`` of the distribution lies."""
        place = bisect_right(self.cumulative, draw) - 1
        low, value = self.cumulative[place], self.values[place]
        return value + (self.values[place + 1] - value) * (draw - low) // (self.cumulative[place + 1] - low)

    def mean(self) -> Fraction:
        """Exact mean of the interpolated distribution, in whole units."""
        total = sum(
            (right - left) * (low + high)
            for (left, low), (right, high) in pairwise(zip(self.cumulative, self.values, strict=True))
        )
        return Fraction(total, 2 * ONE * UNIT)


@lru_cache(maxsize=32)
def gamma(shape: float) -> Table:
    """Gamma distribution of mean 1 and the given shape (coefficient of variation ``1 / sqrt(shape)``).

    The density of ``y = ln x`` is proportional to ``exp(shape * y - exp(y))``: smooth, and integrable on an even grid
    without the gamma function, since the total normalises it. Below the grid (under 1e-13 of the mean, or beyond the
    2**-64 tail) the mass is ``exp(shape * y) / shape``, spread linearly from 0.
    """
    with localcontext(_CONTEXT):
        k = Decimal(shape)
        root = k.sqrt()
        low = k.ln() - min(Decimal(30), 12 / root + 50 / k)
        step = ((k + 10 * root + 60).ln() - low) / CELLS
        grid = [low + step * place for place in range(CELLS + 1)]
        values = [y.exp() for y in grid]
        # Relative to the density at the lowest point, so that none under- or overflows.
        density = [(k * (y - low) - (x - values[0])).exp() for y, x in zip(grid, values, strict=True)]
        cumulative = [Decimal(0), *_areas(density, step, below=1 / k)]
        return _table(cumulative, [Decimal(0), *values], mean=Decimal(1))


@lru_cache(maxsize=32)
def weibull(shape: float) -> Table:
    """Weibull distribution of mean 1 and the given shape: ``E ** (1 / shape)``, scaled, of a unit exponential ``E``.

    The grid is even in ``ln E``, from 1e-13 out to the 2**-64 tail; below it the mass is spread linearly from 0.
    """
    with localcontext(_CONTEXT):
        low, high = Decimal("1e-13").ln(), Decimal("44.4").ln()
        grid = [low + (high - low) * place / CELLS for place in range(CELLS + 1)]
        cumulative = [Decimal(0), *(1 - (-y.exp()).exp() for y in grid)]
        return _table(cumulative, [Decimal(0), *((y / Decimal(shape)).exp() for y in grid)], mean=Decimal(1))


@lru_cache(maxsize=1)
def _normal() -> tuple[list[Decimal], list[Decimal]]:
    """Standard normal: cumulative areas (not normalised) and grid, out to the 2**-64 tails."""
    with localcontext(_CONTEXT):
        edge = Decimal("9.25")
        step = 2 * edge / CELLS
        grid = [-edge + step * place for place in range(CELLS + 1)]
        density = [(-z * z / 2).exp() for z in grid]
        return _areas(density, step, below=Decimal(0)), grid


@lru_cache(maxsize=32)
def lognormal(mean: float, stdev: float) -> Table:
    """Lognormal distribution given by its own mean and standard deviation."""
    cumulative, grid = _normal()
    with localcontext(_CONTEXT):
        ratio = Decimal(stdev) / Decimal(mean)
        sigma = (1 + ratio * ratio).ln().sqrt()
        return _table(cumulative, [(sigma * z).exp() for z in grid], mean=Decimal(mean))


def quantile_table(quantiles: Quantiles) -> Table:
    """Equally spaced quantiles as a table."""
    values = quantiles.values
    last = len(values) - 1
    return Table(
        tuple(ONE * place // last for place in range(last + 1)),
        tuple(round(Fraction(value) * UNIT) for value in values),
    )


def _areas(density: Sequence[Decimal], step: Decimal, *, below: Decimal) -> list[Decimal]:
    """Area under ``density`` up to each grid point by the trapezoid rule; ``below`` is what lies left of the grid."""
    areas = [below]
    for left, right in pairwise(density):
        areas.append(areas[-1] + (left + right) * step * _HALF)
    return areas


def _table(cumulative: Sequence[Decimal], values: Sequence[Decimal], *, mean: Decimal) -> Table:
    """Normalise areas to ``ONE`` and scale values so that the interpolated mean is ``mean``."""
    total = cumulative[-1]
    area = sum(
        (
            (right - left) * (low + high)
            for (left, low), (right, high) in pairwise(zip(cumulative, values, strict=True))
        ),
        Decimal(0),
    )
    scale = mean * 2 * total / area * UNIT
    return Table(
        tuple(int(share * ONE / total) for share in cumulative),
        tuple(int(value * scale + _HALF) for value in values),
    )


def exact(value: float) -> Fraction:
    """The number a person wrote, not its nearest binary fraction: 0.1 is one tenth."""
    return Fraction(repr(value))


def length_draw(length: Length) -> Draw:
    """The draw of a length spec: tokens in units of 2**-32, before scaling and rounding."""
    if length.fixed is not None:
        value = length.fixed * UNIT
        return lambda _: value
    if length.uniform is not None:
        low, width = length.uniform.low, length.uniform.high - length.uniform.low + 1
        return lambda draw: (low + (draw * width >> BITS)) * UNIT
    if length.lognormal is not None:
        spec = length.lognormal
        table = lognormal(spec.mean, spec.stdev)
        if spec.maximum is None:
            return table.at
        most = spec.maximum * UNIT
        return lambda draw: min(table.at(draw), most)
    assert length.quantiles is not None  # exactly one is set, validated by the spec
    return quantile_table(length.quantiles).at


def scaled(value: int, scale: Fraction) -> int:
    """``value / UNIT`` times ``scale``, rounded half up, at least 1."""
    unit = UNIT * scale.denominator
    return max(1, (2 * value * scale.numerator + unit) // (2 * unit))
