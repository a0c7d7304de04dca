"""Evidence of a server seen from outside: what the load client sent and heard, and what metric pages said."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class Deployed:
    """Which server a load client talks to, and the settings it read back from it: proof of what was in force.

    ``settings`` are under the server's own names; ``cache`` says how the prefix cache was brought to its first state.
    """

    kind: ClassVar[str] = "deployed"
    server: str
    version: str
    settings: dict[str, Any]
    cache: str
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sent:
    """A load client handed a try of a request to its socket; ``connect_ns`` went into opening a connection for it."""

    kind: ClassVar[str] = "sent"
    at_ns: Ns
    request: int
    number: int
    connect_ns: Ns


@dataclass(frozen=True, slots=True)
class Streamed:
    """Stream chunks with tokens, as they came in at a load client; ``rows``: request, time, tokens."""

    kind: ClassVar[str] = "streamed"
    at_ns: Ns
    rows: list[tuple[int, Ns, int]]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a whole answer said about itself. None where the server did not say.

    ``queue_ns`` is the server's own time from taking the request in to first running it.

    ``counts`` replaces the tokens of the request's chunks where the server's total differs from what was counted;
    ``comments`` are keep-alive lines, ``empty`` chunks without a token, ``done_mark`` whether the stream ended in one.
    """

    kind: ClassVar[str] = "answered"
    at_ns: Ns
    request: int
    counts: list[int] | None
    prompt_tokens: int | None
    cached_tokens: int | None
    queue_ns: Ns | None
    comments: int
    empty: int
    done_mark: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at a metric source. ``values`` holds what it exports, under the evidence's names; the rest is absent.

    Counters are growth since the first look. ``restarted``: they went back since the look before, so that what was
    counted in between is lost. ``problem`` says why a look failed; there are no values then.
    """

    kind: ClassVar[str] = "observed"
    at_ns: Ns
    source: str
    role: str
    pool: str
    values: dict[str, float]
    restarted: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ClientEffort:
    """What the load client itself needed. ``void`` says why nothing may be concluded from the run; empty: it may.

    ``limit_*`` are the client's own limits as measured before the run, None when they were not. So many of its
    ``processes`` were scheduled in real time all along, None when nobody said.
    """

    kind: ClassVar[str] = "client_effort"
    at_ns: Ns
    processes: int
    cpu_s: float
    wall_s: float
    busiest_share: float
    lag_p99_ns: Ns
    lag_max_ns: Ns
    connections: int
    reconnects: int
    retries: int
    held_back: int
    fed_back: int
    not_fed_back: int
    limit_chunks_per_cpu_s: float | None
    limit_requests_per_cpu_s: float | None
    void: str
    real_time_processes: int | None = None


@dataclass(frozen=True, slots=True)
class Profiled:
    """After the run the server's own profiler looked at ``requests`` of the plan, played again for ``seconds``.

    Nothing of it is measured here; the profile lies where the server writes it. ``problem`` says why there is none.
    """

    kind: ClassVar[str] = "profiled"
    at_ns: Ns
    seconds: float
    requests: int
    problem: str = ""


ClientRecord: TypeAlias = Deployed | Sent | Streamed | Answered | Observed | ClientEffort | Profiled
