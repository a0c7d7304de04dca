"""A measured step: what it computed and how long it took."""

from dataclasses import dataclass

from scheduler_core.types.shape import StepShape
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured step: its shape, the time it took, and the point and round that it belongs to.

    Steps of one point compute alike; a fit is tried on points that it was not given.
    """

    shape: StepShape
    duration_ns: Ns
    point: int
    round: int
