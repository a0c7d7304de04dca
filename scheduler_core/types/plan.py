"""What the planner asks of an executor for one step, and what the executor answers.

Cursors of a request, in tokens of prompt + emitted output::

    0 ........ confirmed ........ granted ........ known
      KV written and   in flight           not yet scheduled
      reported back    (this plan)
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from scheduler_core.types.intervals import Lane
from scheduler_core.types.time import Ns


class Phase(StrEnum):
    """What a grant's compute is for its request."""

    PREFILL = "prefill"
    DECODE = "decode"
    RECOMPUTE = "recompute"


class Grant(NamedTuple):
    """``length`` tokens of request ``request`` are to be computed, from position ``start``.

    ``new_blocks`` are appended to the request's block table before the step; with the blocks of earlier grants the
    table covers ``start + length`` positions. ``samples`` is true when the last computed position is the last known
    token, so that the step yields one new token. ``hit_tokens`` leading tokens of a first grant (``start`` equals
    ``hit_tokens`` then) were found in the prefix cache: their blocks are the first of ``new_blocks``.
    """

    request: int
    epoch: int
    start: int
    length: int
    new_blocks: tuple[int, ...]
    samples: bool
    phase: Phase
    hit_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of one instance: ordered grants, and the rows the executor may forget first.

    ``released`` are requests whose block tables are void from now on (finished, preempted, aborted); a preempted
    request comes back with a higher epoch and a fresh table.
    """

    id: int
    grants: tuple[Grant, ...]
    released: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(grant.length for grant in self.grants)

    def digest(self) -> str:
        """Hex digest over all decisions of the step: equal digests mean equal plans, in any process."""
        text = ";".join(
            f"{g.request},{g.epoch},{g.start},{g.length},{g.new_blocks},{int(g.samples)},{g.phase},{g.hit_tokens}"
            for g in self.grants
        )
        return hashlib.blake2b(f"{self.id}|{text}|{self.released}".encode(), digest_size=8).hexdigest()


class GrantResult(NamedTuple):
    """What one grant yielded: a token id, and whether it was the request's last one.

    The id is None when the grant did not sample, and on targets whose tokens have no ids (`Grant.samples` says whether
    there is a token at all).

    ``tie_margin`` is the distance of the two best logits when it was below the engine's declared tolerance, so that
    another batch shape may pick the other token; None otherwise.
    """

    token: int | None
    last: bool = False
    tie_margin: float | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to a `StepPlan`: one `GrantResult` per grant, in order, and where the time went.

    ``available_ns`` is when the step's tokens could be read by the caller.
    """

    plan_id: int
    grants: tuple[GrantResult, ...]
    lanes: tuple[Lane, ...]
    started_ns: Ns
    available_ns: Ns
    failure: str | None = None
