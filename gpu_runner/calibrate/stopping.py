"""How a calibration ends early."""

from scheduler_core.types.errors import HeadwayError


class Stopped(HeadwayError):  # noqa: N818 - asked for, not an error
    """The calibration was told to stop before it had enough to fit."""
