"""Answers that policies give and the planner records."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from scheduler_core.types.reasons import Defer
from scheduler_core.types.time import Ns


class Deferral(NamedTuple):
    """Why a waiting request is passed over, with the compared numbers; ``skip`` lets those behind it be tried."""

    reason: Defer
    need: int
    have: int
    skip: bool = False


class Remedy(NamedTuple):
    """How a request that has to stop gets its KV back: by copying it to the host and back, or by computing it again.

    The estimated times are those that were compared, None where nothing was.
    """

    swap: bool
    copy_ns: Ns | None = None
    recompute_ns: Ns | None = None


class Serve(Enum):
    """Which requests a pass serves."""

    ALL = "all running requests, in order of admission"
    PREFILLS = "running requests with more than the newest token to compute"
    DECODES = "running requests with only the newest token to compute"
    WAITING = "waiting requests, in queue order"


@dataclass(frozen=True, slots=True)
class Pass:
    """One round of granting within a step; with ``ends_step`` it is the last one if anything was granted by then.

    With ``yields`` it is left out, whole, if anything was granted by then and there are too few blocks for the next
    token of everybody it serves: nobody is stopped for it.
    """

    serve: Serve
    ends_step: bool = False
    yields: bool = False


@dataclass(frozen=True, slots=True)
class Passes:
    """The rounds of a step. ``closed`` says why waiting requests are not looked at when no pass serves them."""

    order: tuple[Pass, ...]
    closed: Deferral | None = None


INTERLEAVED = Passes((Pass(Serve.ALL), Pass(Serve.WAITING)))
"""Serve running requests in order of admission, then admit with what is left of the budget (V-01)."""


class Place(Enum):
    """Where a preempted request waits."""

    FRONT = "before everyone who waits"
    BACK = "behind everyone who waits"
    BY_KEY = "where the order's key puts it"


class Publish(Enum):
    """When filled blocks become visible to prefix lookups."""

    AT_GRANT = "while planning, so that the same step can already hit them (V-22)"
    AT_CONFIRM = "when the step that fills them has come back"
    AT_CHUNK = "when a prefill step has come back; those of emitted tokens when the request ends (G-25)"


class Retain(Enum):
    """When the slot and blocks of a finished request are given up."""

    REQUEST = "as soon as it ends"
    BATCH = "when its whole batch has ended (ST-04)"
