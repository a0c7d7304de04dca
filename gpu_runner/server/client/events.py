"""What a shard tells while it plays; times are ns on the run's clock."""

from array import array
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from scheduler_core.types.time import Ns


class Due(NamedTuple):
    """A request's intended send time has come; ``seen_ns`` is when the client took it up."""

    request: int
    at_ns: Ns
    seen_ns: Ns


class Wrote(NamedTuple):
    """A try was handed to the socket; ``connect_ns`` was spent on opening a connection for it."""

    request: int
    at_ns: Ns
    number: int
    connect_ns: Ns


class Chunks(NamedTuple):
    """Chunks with tokens since the last event of this kind, in order of arrival.

    ``flat`` has request, at_ns and tokens of each in turn, which cross to another process for less than tuples do.
    """

    flat: "array[int]"

    @property
    def rows(self) -> list[tuple[int, Ns, int]]:
        """(request, at_ns, tokens) of each chunk."""
        values = iter(self.flat)
        return list(zip(values, values, values, strict=True))


class Over(NamedTuple):
    """A request is over. ``counts`` are corrected tokens per chunk where the server's total said otherwise."""

    request: int
    at_ns: Ns
    outcome: str
    stage: str
    reason: str
    tokens: int
    counts: list[int] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    queue_ns: Ns | None = None
    comments: int = 0
    empty: int = 0
    done_mark: bool = True


class Effort(NamedTuple):
    """The shard's last word: what the client itself needed, how far behind it was, and how it was scheduled."""

    cpu_s: float
    wall_s: float
    busiest_share: float
    lag_p99_ns: Ns
    lag_max_ns: Ns
    connections: int
    opened: int
    reconnects: int
    retries: int
    held_back: int
    answers_fed_back: int
    answers_not_fed_back: int
    real_time: bool


class Failed(NamedTuple):
    """The shard could not go on."""

    reason: str


Event: TypeAlias = Due | Wrote | Chunks | Over | Effort | Failed


@dataclass(frozen=True)
class Clock:
    """The run's clock: monotonic ns of this host, less ``zero_ns``."""

    zero_ns: int

    def of(self, monotonic_ns: int) -> Ns:
        """A monotonic time on the run's clock."""
        return monotonic_ns - self.zero_ns
