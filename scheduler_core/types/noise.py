"""Randomness as a pure function of (seed, stream, counter): the same anywhere, in any order of asking."""

import hashlib
import math
from statistics import NormalDist

_UNIT = NormalDist()
_MANTISSA = 1 << 53


def uniform(seed: int, stream: str, counter: int) -> float:
    """A number in (0, 1), uniformly distributed over seeds, streams and counters."""
    digest = hashlib.blake2b(f"{seed}/{stream}/{counter}".encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 11) + 0.5) / _MANTISSA


def standard_normal(seed: int, stream: str, counter: int) -> float:
    """A standard normal number, cut at three standard deviations."""
    return max(-3.0, min(3.0, _UNIT.inv_cdf(uniform(seed, stream, counter))))


def blurred(value: float, *, sigma: float, bias: float, seed: int, counter: int) -> float:
    """``value`` with the error of a prediction: times ``bias``, and a lognormal factor whose logarithm has ``sigma``.

    The median of the factors is ``bias``; which one a request gets depends on seed and counter alone.
    """
    factor = math.exp(sigma * standard_normal(seed, "prediction", counter)) if sigma else 1.0
    return value * bias * factor
