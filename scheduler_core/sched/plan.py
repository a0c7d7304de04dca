"""What planning and completing a step hand to the driver."""

from dataclasses import dataclass

from scheduler_core.types.plan import StepPlan
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Counts after planning: KV blocks by account, requests by place."""

    kv_used: int
    kv_cached: int
    kv_free: int
    waiting: int
    running: int
    paused: int


@dataclass(frozen=True, slots=True)
class Planned:
    """A step to launch. ``stalled`` are resident requests that got nothing, with the cause."""

    plan: StepPlan
    planned_ns: Ns
    stalled: tuple[tuple[int, str], ...]
    occupancy: Occupancy
    budget: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that is over. ``need`` and ``have`` are the numbers compared when it was refused."""

    request: int
    outcome: Outcome
    stage: str
    reason: str
    output_tokens: int
    need: int | None = None
    have: int | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """Effects of a step that came back: who emitted a token (in grant order, by grant index), and who ended."""

    emitted: tuple[tuple[int, int], ...]
    ended: tuple[Ended, ...]
