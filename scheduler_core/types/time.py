"""Integer nanoseconds, and the one place that converts them.

Everything inside the core is ``Ns``; records and screens show milliseconds or seconds with the unit in the name.
"""

from typing import Final, TypeAlias

Ns: TypeAlias = int

NEVER: Final = (1 << 62) - 1
"""Later than anything that is due; the largest that machine code computes with as a number of the machine's."""

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000


def ms_from_ns(value: Ns) -> float:
    """Milliseconds of ``value`` nanoseconds."""
    return value / NS_PER_MS


def s_from_ns(value: Ns) -> float:
    """Seconds of ``value`` nanoseconds."""
    return value / NS_PER_S


def ns_from_ms(value: float) -> Ns:
    """Nearest nanosecond to ``value`` milliseconds."""
    return round(value * NS_PER_MS)


def ns_from_s(value: float) -> Ns:
    """Nearest nanosecond to ``value`` seconds."""
    return round(value * NS_PER_S)
