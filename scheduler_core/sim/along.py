"""Values of a line through knots."""

from bisect import bisect_right

from scheduler_core.spec.target import Knots


def along(knots: Knots, place: float) -> float:
    """The line through ``knots`` at ``place``: level before the first, straight on after the last, 0 without any."""
    if not knots:
        return 0.0
    if len(knots) == 1 or place <= knots[0][0]:
        return knots[0][1]
    at = min(bisect_right([knot for knot, _ns in knots], place), len(knots) - 1)
    (left, low), (right, high) = knots[at - 1], knots[at]
    return low + (high - low) * (place - left) / (right - left)
