"""What planning and completing a step hand to the driver."""

from dataclasses import dataclass
from typing import NamedTuple

from scheduler_core.types.plan import Grant, StepPlan
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.shape import StepShape, shape_of_grants
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Counts after planning: KV blocks by account, requests by place, host blocks that hold something."""

    kv_used: int
    kv_cached: int
    kv_free: int
    waiting: int
    running: int
    paused: int
    host_used: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """A step to launch. ``stalled`` are resident requests that got nothing, with the cause.

    ``evicted_ahead`` are cached blocks that were made clean for the steps to come.
    """

    plan: StepPlan
    planned_ns: Ns
    stalled: tuple[tuple[int, str], ...]
    occupancy: Occupancy
    budget: int
    evicted_ahead: int = 0


class FusedStep(NamedTuple):
    """A step in which ``decoders`` members of the cohort got one token each, and others got ``grants``.

    ``context_tokens`` are the KV positions that the decoders read. ``may_repeat``: as long as no event comes and the
    pool has room, the next step is the same again. ``copied_out`` and ``copied_in`` are blocks copied to and from the
    host, ``copied_on_write`` on the device, ``evicted_ahead`` as of `Planned`.
    """

    id: int
    grants: tuple[Grant, ...]
    decoders: int
    context_tokens: int
    may_repeat: bool
    copied_out: int = 0
    copied_in: int = 0
    evicted_ahead: int = 0
    copied_on_write: int = 0

    @property
    def moves(self) -> bool:
        """Whether what blocks hold changes beside what the step computes."""
        return bool(self.copied_out or self.copied_in or self.evicted_ahead or self.copied_on_write)

    def shape(self) -> StepShape:
        """What the step's duration depends on. O(grants)."""
        return shape_of_grants(self.grants, self.decoders, self.context_tokens if self.decoders else 0)


class Ended(NamedTuple):
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
