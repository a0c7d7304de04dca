"""What the audit keeps of the requests and instances that it follows."""

from dataclasses import dataclass, field

from scheduler_core.types.records import Paused
from scheduler_core.types.time import Ns


@dataclass(slots=True)
class AuditedRequest:
    """A request as its records tell: what it was, where it is, what it has got."""

    arrived_ns: Ns
    prompt: int
    limit: int
    resident: bool = False
    epoch: int = -1
    next_start: int | None = None
    emitted: int = 0
    first_ns: Ns | None = None
    last_ns: Ns | None = None
    gaps_ns: Ns = 0
    prefilled: int = 0
    first_hit: int | None = None
    preempted: int = 0
    token_lost: bool = False
    instance: int = 0
    recomputes: bool = False
    landed: tuple[int, int] | None = None
    paused: Paused | None = None
    held: bool = False
    migrating: str = ""


@dataclass(slots=True)
class AuditedInstance:
    """What must hold of the steps of one instance."""

    resident: set[int] = field(default_factory=set)
    ended_at: dict[int, Ns] = field(default_factory=dict)
    last_step: int | None = None
    last_available: Ns = 0
    swapped_blocks: int = 0
    empty: bool = False  # the cache was reset and no step has been planned since
