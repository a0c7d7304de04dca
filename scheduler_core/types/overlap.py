"""How the parts of successive steps may lie over one another: a property of execution, never of a request."""

from enum import StrEnum


class DualBatch(StrEnum):
    """When a step of a parallel instance is cut into two halves, one of which communicates while the other computes."""

    NEVER = "never"
    SOONER = "sooner"
    ALWAYS = "always"


class Overlap(StrEnum):
    """What may run beside a computing step.

    A step has five parts, each after the one before: the host prepares it, its input is copied, the device computes,
    the result is copied back, the host finishes it (sampling, text, streaming).
    """

    NONE = "none"
    PIPELINED = "pipelined"
    TWO_STREAM = "two_stream"
    SCHEDULE_AHEAD = "schedule_ahead"

    @property
    def steps_in_flight(self) -> int:
        """Steps that may be planned and not yet come back."""
        return 2 if self in (Overlap.TWO_STREAM, Overlap.SCHEDULE_AHEAD) else 1

    @property
    def plans_on_promises(self) -> bool:
        """Whether a request may be planned again while its newest token is still being computed."""
        return self is Overlap.SCHEDULE_AHEAD
