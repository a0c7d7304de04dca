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
from scheduler_core.types.spread import Spread
from scheduler_core.types.time import Ns


class Phase(StrEnum):
    """What a grant's compute is for its request."""

    PREFILL = "prefill"
    DECODE = "decode"
    RECOMPUTE = "recompute"


_DECODE = Phase.DECODE
PHASE_NAMES = {phase: phase.value for phase in Phase}
"""The word for each phase; in CPython 3.11 a member's own ``value`` takes several times as long."""


class Grant(NamedTuple):
    """``length`` tokens of request ``request`` are to be computed, from position ``start``.

    ``new_blocks`` are appended to the request's block table before the step; with the blocks of earlier grants the
    table covers ``start + length`` positions. ``samples`` is true when the last computed position is the last known
    token, so that the step yields one new token. ``hit_tokens`` leading tokens of a first grant (``start`` equals
    ``hit_tokens`` then) need no computing, and their blocks are the first of ``new_blocks``: found in the prefix cache
    on the device, shared with another sample of the prompt, or filled by the plan's ``copies_in`` and
    ``copies_on_write``. It is a multiple of the block size unless blocks are filled so.

    The last ``drafts`` of the tokens are proposals of what follows the last known token, to be checked: the step yields
    one token more than it accepts of them.
    """

    request: int
    epoch: int
    start: int
    length: int
    new_blocks: tuple[int, ...]
    samples: bool
    phase: Phase
    hit_tokens: int = 0
    drafts: int = 0

    @property
    def end(self) -> int:
        """Position after the last one whose token is known, or promised by a step in flight."""
        return self.start + self.length - self.drafts


class BlockCopy(NamedTuple):
    """The whole content of block ``source`` goes into block ``target``; each pool numbers its blocks from 0.

    The list it stands in says which is which: ``copies_out`` device to host, ``copies_in`` host to device,
    ``copies_on_write`` device to device.
    """

    source: int
    target: int


class Rebind(NamedTuple):
    """From entry ``first`` on, the block table of ``request`` (of ``epoch``) names ``blocks`` instead of what it named.

    They hold the same KV, computed by another request at the same time; the request's own copies are free afterwards.
    The table's length does not change.
    """

    request: int
    epoch: int
    first: int
    blocks: tuple[int, ...]


class Moves(NamedTuple):
    """What a plan does to blocks and tables before it computes; see `StepPlan`."""

    copies_out: tuple[BlockCopy, ...] = ()
    copies_in: tuple[BlockCopy, ...] = ()
    rebinds: tuple[Rebind, ...] = ()
    copies_on_write: tuple[BlockCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of one instance: what to forget, what to copy, then what to compute. Executed in this order::

        released         block tables of these requests are void (finished, preempted, swapped out, aborted)
        rebinds          entries of block tables are exchanged for equal ones
        copies_out       device block -> host block, all of them before anything below writes to the device
        copies_on_write  device block -> device block
        copies_in        host block -> device block
        grants           computed; a request that comes back has a higher epoch and a fresh table

    A device block that is copied out may be the target of a copy in or be computed into by the same plan, and a host
    block filled by ``copies_out`` may be read by ``copies_in`` of the same plan. A host block that ``copies_in`` reads
    is not overwritten by this plan. A host block keeps its content until a later ``copies_out`` names it again. No
    block is a target twice in one list. Plans take effect in launch order, so a copy sees what all earlier plans wrote.

    What ``copies_on_write`` reads was written by earlier plans. The plan may write more to such a block, behind the
    positions that matter to the copy; none is a target of copies on the device.

    A request that was swapped out comes back by a first grant like that of a cache hit: ``hit_tokens`` tells how many
    tokens are there after the copies, and is any number below the known tokens.
    """

    id: int
    grants: tuple[Grant, ...]
    released: tuple[int, ...] = ()
    copies_out: tuple[BlockCopy, ...] = ()
    copies_in: tuple[BlockCopy, ...] = ()
    rebinds: tuple[Rebind, ...] = ()
    copies_on_write: tuple[BlockCopy, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(grant.length for grant in self.grants)

    def digest(self) -> str:
        """Hex digest over all decisions of the step: equal digests mean equal plans, in any process."""
        # Asked for at every step, so spelled for speed: most grants decode and bring no blocks.
        text = ";".join(
            [
                f"{request},{epoch},{start},{length},(),1,decode,{hits}"
                if samples and phase is _DECODE and not blocks
                else f"{request},{epoch},{start},{length},{blocks or '()'},{int(samples)},{PHASE_NAMES[phase]},{hits}"
                for request, epoch, start, length, blocks, samples, phase, hits, _drafts in self.grants
            ]
        )
        text = f"{self.id}|{text}|{self.released}"
        drafts = [grant.drafts for grant in self.grants]
        if any(drafts):
            text += f"|{drafts}"
        if self.copies_out or self.copies_in or self.rebinds:
            moves = (self.copies_out, self.copies_in, self.rebinds)
            text += "".join(f"|{[tuple(item) for item in items]}" for items in moves)
        if self.copies_on_write:
            text += f"|on write {[tuple(item) for item in self.copies_on_write]}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class GrantResult(NamedTuple):
    """What one grant yielded: a token id, and whether it was the request's last one.

    Of the grant's drafts the first ``accepted`` are tokens of the answer, too, and come before that one.

    The id is None when the grant did not sample, and on targets whose tokens have no ids (`Grant.samples` says whether
    there is a token at all).

    ``tie_margin`` is the distance of the two best logits when it was below the engine's declared tolerance, so that
    another batch shape may pick the other token; None otherwise.
    """

    token: int | None
    last: bool = False
    tie_margin: float | None = None
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to a `StepPlan`: one `GrantResult` per grant, in order, and where the time went.

    ``available_ns`` is when the step's tokens could be read by the caller; ``spread`` what the devices of a parallel
    instance did.
    """

    plan_id: int
    grants: tuple[GrantResult, ...]
    lanes: tuple[Lane, ...]
    started_ns: Ns
    available_ns: Ns
    failure: str | None = None
    spread: Spread | None = None
