"""When requests arrive: integer nanoseconds from the start of the run, for every open-loop process of the spec.

Constant, Poisson, gamma and quantile gaps put their first request at 0, so a run wastes no time on the first gap and
the rate of ``n`` requests is ``(n - 1) / (last - first)``. Ramp and step follow a profile that starts at 0; their first
request comes when the profile's cumulative rate reaches the first unit exponential.

Times are computed from running sums in integers, never by adding rounded gaps, so no drift builds up.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import accumulate
from math import isqrt

from scheduler_core.spec.workload import Arrivals, Ramp, Step
from scheduler_core.types.time import NS_PER_S, Ns
from scheduler_core.workload.distributions import UNIT, Draw, exact, gamma, quantile_table
from scheduler_core.workload.uniform import Stream


def arrival_times(arrivals: Arrivals, count: int, *, seed: int, thin: Fraction = Fraction(1)) -> Iterator[Ns]:
    """The first ``count`` arrival times, in order.

    Every rate is multiplied by ``thin``: the share of the requests that this process places itself, where the others
    (later turns of a session) follow from answers. A closed loop has no times of its own and is not for this function.
    """
    if arrivals.constant is not None:
        return _constant(exact(arrivals.constant.rate_rps) * thin, count)
    stream = Stream(seed, "gap")
    if arrivals.poisson is not None:
        return _renewal(_unit_gaps(gamma(1.0).at, stream), exact(arrivals.poisson.rate_rps) * thin, count)
    if arrivals.gamma is not None:
        draw = gamma(arrivals.gamma.burstiness).at
        return _renewal(_unit_gaps(draw, stream), exact(arrivals.gamma.rate_rps) * thin, count)
    if arrivals.quantiles is not None:
        table = quantile_table(arrivals.quantiles.gaps)
        # The table's unit is arbitrary: a rate of 1 over its own mean gap makes the mean gap 1 s / rate.
        rate = exact(arrivals.quantiles.rate_rps) * thin * table.mean()
        return _renewal(_unit_gaps(table.at, stream), rate, count)
    if arrivals.ramp is not None:
        return _inverse(_ramp(arrivals.ramp, thin), stream, count)
    assert arrivals.step is not None  # the closed loop was excluded by the caller
    return _inverse(_step(arrivals.step, thin), stream, count)


def _unit_gaps(draw: Draw, stream: Stream) -> Iterator[int]:
    """Gaps in units of 2**-32, without end."""
    index = 0
    while True:
        yield draw(stream.at(index))
        index += 1


def _constant(rate: Fraction, count: int) -> Iterator[Ns]:
    return (index * NS_PER_S * rate.denominator // rate.numerator for index in range(count))


def _renewal(gaps: Iterator[int], rate: Fraction, count: int) -> Iterator[Ns]:
    """Independent gaps at ``rate``, the first request at 0."""
    scale, unit = NS_PER_S * rate.denominator, UNIT * rate.numerator
    sums = accumulate(gaps, initial=0)
    return (next(sums) * scale // unit for _ in range(count))


def _inverse(time_of: Callable[[int], Ns], stream: Stream, count: int) -> Iterator[Ns]:
    """A Poisson process of changing rate: the cumulative rate, inverted at the points of a unit-rate process.

    ``time_of`` gives the time at which the cumulative rate (in units of 2**-32 requests) reaches its argument; it is
    called with rising arguments.
    """
    sums = accumulate(_unit_gaps(gamma(1.0).at, stream))
    return (time_of(next(sums)) for _ in range(count))


def _ramp(ramp: Ramp, thin: Fraction) -> Callable[[int], Ns]:
    """Inverse of ``L(t) = a t + (b - a) t^2 / (2 T)`` up to ``T``, then of the straight line at rate ``b``.

    With ``e = L / T`` and ``s = t / T``: ``s = 2 e / (a + sqrt(a^2 + 2 (b - a) e))``, the form without cancellation.
    """
    start = round(exact(ramp.from_rps) * thin * UNIT)
    end = exact(ramp.to_rps) * thin
    over = exact(ramp.over_s)
    over_ns = round(over * NS_PER_S)
    end_units = round(end * UNIT)
    area = round((start + end_units) * over / 2)
    end_scale, end_unit = NS_PER_S * end.denominator, UNIT * end.numerator

    def time_of(reached: int) -> Ns:
        if reached >= area:
            return over_ns + (reached - area) * end_scale // end_unit
        mean = reached * over.denominator // over.numerator
        # Rates are in 2**-32; the root of (rates squared << 64) is a rate in 2**-64.
        root = isqrt((start * start + 2 * (end_units - start) * mean) << 64)
        share = (2 * mean << 96) // max(1, (start << 32) + root)
        return min(over_ns, over_ns * share >> 64)

    return time_of


def _step(step: Step, thin: Fraction) -> Callable[[int], Ns]:
    """Inverse of a cumulative rate made of straight pieces; the last piece has no end."""
    stages = [(exact(stage.rate_rps) * thin, exact(stage.for_s)) for stage in step.stages]
    starts = [round(at * NS_PER_S) for at in accumulate((length for _, length in stages), initial=Fraction(0))]
    areas = [round(area * UNIT) for area in accumulate((rate * length for rate, length in stages), initial=Fraction(0))]
    place = 0

    def time_of(reached: int) -> Ns:
        nonlocal place
        while place < len(stages) - 1 and reached >= areas[place + 1]:
            place += 1
        rate = stages[place][0]
        return starts[place] + (reached - areas[place]) * NS_PER_S * rate.denominator // (UNIT * rate.numerator)

    return time_of
