"""Per-request rows: known tokens, the block table, and how far KV is written. Updated by plan deltas.

A row outlives preemption: its tokens stay, its table is void until a grant of a higher epoch brings a fresh one.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpu_runner.engine.prompts import Tokens
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import CallerError
from scheduler_core.types.plan import Grant, Rebind

_FIRST_TABLE = 32


@dataclass(slots=True)
class Row:
    """One open request.

    ``tokens`` holds prompt and output, the first ``known`` of them valid. ``written`` counts the positions whose KV
    lies in the blocks of ``table[:blocks]``.
    """

    request: PlannedRequest
    tokens: Tokens
    known: int
    epoch: int = -1
    written: int = 0
    blocks: int = 0
    table: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(_FIRST_TABLE, np.int32))

    @property
    def emitted(self) -> int:
        """Output tokens so far."""
        return self.known - self.request.prompt_tokens

    @property
    def done(self) -> bool:
        """Whether the true output length is reached."""
        return self.emitted >= self.request.output_tokens

    def emit(self, token: int) -> None:
        """Append one output token."""
        self.tokens[self.known] = token
        self.known += 1

    def void(self) -> None:
        """Forget the block table; the tokens stay."""
        self.blocks = 0
        self.written = 0

    def extend(self, blocks: tuple[int, ...]) -> None:
        """Append ``blocks`` to the table."""
        needed = self.blocks + len(blocks)
        if needed > self.table.size:
            grown = np.zeros(max(needed, 2 * self.table.size), np.int32)
            grown[: self.blocks] = self.table[: self.blocks]
            self.table = grown
        self.table[self.blocks : needed] = blocks
        self.blocks = needed


class Rows:
    """All open requests of an instance, and the rules a plan must keep for them."""

    def __init__(self, *, kv_blocks: int, block_size: int) -> None:
        self._rows: dict[int, Row] = {}
        self._kv_blocks = kv_blocks
        self._block_size = block_size

    def open(self, request: PlannedRequest, prompt: Tokens) -> None:
        """Take up a request whose prompt ids are ``prompt``."""
        if request.index in self._rows:
            raise CallerError(f"request {request.index} is open already")
        tokens = np.zeros(request.prompt_tokens + max(request.output_tokens, 1), np.int64)
        tokens[: prompt.size] = prompt
        self._rows[request.index] = Row(request, tokens, prompt.size)

    def close(self, request: int) -> None:
        """Forget a request; closing one that is not open changes nothing."""
        self._rows.pop(request, None)

    def release(self, request: int) -> None:
        """Void the block table of a request, if it is still open."""
        row = self._rows.get(request)
        if row is not None:
            row.void()

    def rebind(self, rebind: Rebind) -> None:
        """Exchange entries of a request's table; `CallerError` when they are not there."""
        row = self._rows.get(rebind.request)
        last = rebind.first + len(rebind.blocks)
        if row is None or row.epoch != rebind.epoch or not 0 <= rebind.first < last <= row.blocks:
            raise CallerError(f"request {rebind.request}: no entries {rebind.first} to {last} to exchange")
        row.table[rebind.first : last] = rebind.blocks

    def tables(self) -> dict[int, tuple[int, ...]]:
        """The block table of each request that holds blocks."""
        return {index: tuple(row.table[: row.blocks].tolist()) for index, row in self._rows.items() if row.blocks}

    def apply(self, grant: Grant) -> Row:
        """The row of ``grant`` with its table extended; `CallerError` when the grant breaks a rule of the plan."""
        row = self._rows.get(grant.request)
        if row is None:
            raise CallerError(f"grant for request {grant.request}, which is not open")
        if grant.epoch < row.epoch:
            raise CallerError(f"request {grant.request}: epoch {grant.epoch} is older than {row.epoch}")
        if grant.epoch > row.epoch:
            row.void()
            row.epoch = grant.epoch
            row.written = grant.hit_tokens
        self._check(grant, row)
        row.extend(grant.new_blocks)
        if row.blocks * self._block_size < grant.start + grant.length:
            raise CallerError(
                f"request {grant.request}: {row.blocks} blocks of {self._block_size} do not cover "
                f"{grant.start + grant.length} positions"
            )
        row.written = grant.start + grant.length
        return row

    def _check(self, grant: Grant, row: Row) -> None:
        if grant.length < 1 or grant.start != row.written:
            raise CallerError(
                f"request {grant.request}: grant of {grant.length} from {grant.start}, KV is written to {row.written}"
            )
        if grant.start + grant.length > row.known:
            raise CallerError(
                f"request {grant.request}: grant to {grant.start + grant.length}, only {row.known} tokens are known"
            )
        if grant.samples != (grant.start + grant.length == row.known):
            raise CallerError(f"request {grant.request}: samples={grant.samples} at the wrong position")
        wrong = [block for block in grant.new_blocks if not 0 <= block < self._kv_blocks]
        if wrong:
            raise CallerError(f"request {grant.request}: blocks {wrong} are outside the pool of {self._kv_blocks}")
