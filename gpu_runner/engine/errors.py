"""Errors of the engine that are neither a user's input nor a fault of the program."""

from scheduler_core.types.errors import HeadwayError


class EngineError(HeadwayError):
    """The device could not do what was asked: no such device, or its memory ran out."""
