"""What a long simulation keeps of each request: one row."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from scheduler_core.types.time import Ns


class RequestRow(NamedTuple):
    """What happened to one request; times in ns from the start, None where it never came that far."""

    request: int
    arrival_ns: Ns
    started_ns: Ns | None
    first_token_ns: Ns | None
    end_ns: Ns
    outcome: str
    reason: str
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    hit_tokens: int


RowSink: TypeAlias = Callable[[RequestRow], None]
"""Receives rows in order of the requests' ends."""


class Track:
    """What the simulator alone knows of an open request."""

    __slots__ = ("arrival_ns", "first_ns", "hit_tokens", "output", "started_ns")

    def __init__(self, arrival_ns: Ns, output: int) -> None:
        self.arrival_ns = arrival_ns
        self.output = output
        self.hit_tokens = 0
        self.started_ns: Ns | None = None
        self.first_ns: Ns | None = None
