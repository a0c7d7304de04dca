"""What the sources of a workload have in common: rows without limits, seeds and people, in index order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_core.types.time import Ns

LATEST_NS = 2**62
"""Latest planned time, about 146 years: everything downstream may rely on 64-bit times."""

MOST_TOKENS = 100_000_000
"""Largest prompt or output of one request: far above any model, and safe in 64-bit sums."""

MOST_BLOCK_IDS = 100_000_000
"""Most prefix block ids of one plan."""


class Slot(NamedTuple):
    """One request to be, in the order of the plan.

    ``arrival_ns`` and ``after`` mean what they mean in `PlannedRequest`. ``who`` numbers the person who asks: requests
    with one number (the turns of a session) get one tenant and one tier, unless the source brings them.
    """

    arrival_ns: Ns
    prompt_tokens: int
    output_tokens: int
    who: int
    after: tuple[int, ...] = ()
    session: int | None = None
    turn: int = 0
    prefix_blocks: tuple[int, ...] = ()
    tenant: str | None = None
    tier: str | None = None


@dataclass(frozen=True, slots=True)
class Offered:
    """The requests a source offers; ``outputs`` are all output lengths, known before the slots are drawn."""

    slots: Iterable[Slot]
    outputs: Sequence[int]
    block_size: int
    notes: tuple[str, ...] = ()
    observed_hit_share: float | None = None
