"""Per-request rows: known tokens, block tables, and how far KV is written. Updated by plan deltas.

One place in a set of arrays belongs to each open request, so that a step of many requests costs a few NumPy calls
instead of Python for each. Between two forwards every array is cold: the numbers of a request share a cache line, and
its rules are checked all at once. A row outlives preemption: its tokens stay, its table is void until a grant of a
higher epoch brings a fresh one.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gpu_runner.engine.prompts import Tokens
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import CallerError
from scheduler_core.types.plan import Grant, Rebind

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Number = TypeVar("Number", np.int64, np.int32, np.uint64)

_FIRST_ROWS, _FIRST_TABLE, _FIRST_TOKENS = 64, 32, 256
_KNOWN, _PROMPT, _OUTPUT, _EPOCH, _WRITTEN, _BLOCKS, _PROMISED, _OPENING = range(8)


class Granted(NamedTuple):
    """The grants of a plan as columns, in its order: the row of each, its first position, its length, if it samples.

    ``openings`` tell which request had the row, should it have gone to another one when the answer comes.
    """

    rows: Ints
    starts: Ints
    lengths: Ints
    samples: Mask
    openings: Ints


class Rows:
    """All open requests of an instance, and the rules a plan must keep for them.

    Arrays are by row. ``tokens`` holds prompt and output, the first ``known`` of them valid; ``tables`` block ids, the
    first ``blocks`` of them valid and the others 0; ``seeds`` those of the requests. A token that a launched step will
    yield is promised: it may be granted already, its id comes from the device.
    """

    def __init__(self, *, kv_blocks: int, block_size: int) -> None:
        self._kv_blocks = kv_blocks
        self._block_size = block_size
        self._places: dict[int, int] = {}
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))
        self.tokens = np.zeros((_FIRST_ROWS, _FIRST_TOKENS), np.int64)
        self.tables = np.zeros((_FIRST_ROWS, _FIRST_TABLE), np.int32)
        self.seeds = np.zeros(_FIRST_ROWS, np.uint64)
        self._take_numbers(np.zeros((_FIRST_ROWS, 8), np.int64))
        self._opened = 0

    def _take_numbers(self, numbers: Ints) -> None:
        self._numbers = numbers
        self.known, self._prompt, self._output = (numbers[:, column] for column in (_KNOWN, _PROMPT, _OUTPUT))
        self._epoch, self._written, self.blocks = (numbers[:, column] for column in (_EPOCH, _WRITTEN, _BLOCKS))
        self._promised, self._opening = numbers[:, _PROMISED], numbers[:, _OPENING]

    def open(self, request: PlannedRequest, prompt: Tokens) -> None:
        """Take up a request whose prompt ids are ``prompt``."""
        if request.index in self._places:
            raise CallerError(f"request {request.index} is open already")
        if not self._free:
            self._add_rows()
        row = self._places[request.index] = self._free.pop()
        self.tokens = _widened(self.tokens, prompt.size + max(request.output_tokens, 1))
        self.tokens[row, : prompt.size] = prompt
        self.seeds[row] = request.draw_seed
        self.known[row] = self._prompt[row] = prompt.size
        self._output[row], self._epoch[row] = request.output_tokens, -1
        self._opened += 1
        self._promised[row], self._opening[row] = 0, self._opened
        self._void(np.array([row]))

    def close(self, request: int) -> None:
        """Forget a request; closing one that is not open changes nothing."""
        row = self._places.pop(request, None)
        if row is not None:
            self._void(np.array([row]))
            self._opening[row] = 0
            self._free.append(row)

    def release(self, request: int) -> None:
        """Void the block table of a request, if it is still open."""
        row = self._places.get(request)
        if row is not None:
            self._void(np.array([row]))

    def rebind(self, rebind: Rebind) -> None:
        """Exchange entries of a request's table; `CallerError` when they are not there."""
        row = self._places.get(rebind.request)
        last = rebind.first + len(rebind.blocks)
        if row is None or self._epoch[row] != rebind.epoch or not 0 <= rebind.first < last <= self.blocks[row]:
            raise CallerError(f"request {rebind.request}: no entries {rebind.first} to {last} to exchange")
        self.tables[row, rebind.first : last] = rebind.blocks

    def block_tables(self) -> dict[int, tuple[int, ...]]:
        """The block table of each request that holds blocks."""
        return {
            index: tuple(self.tables[row, : self.blocks[row]].tolist())
            for index, row in self._places.items()
            if self.blocks[row]
        }

    def apply(self, grants: tuple[Grant, ...]) -> Granted:
        """The grants with their tables extended; `CallerError` when one breaks a rule of the plan."""
        requests, epochs, starts, lengths, new_blocks, samples, _phases, hits, _drafts = zip(*grants, strict=True)
        places = self._places
        try:
            rows = np.array([places[request] for request in requests])
        except KeyError as missing:
            raise CallerError(f"grant for request {missing}, which is not open") from None
        given = np.array(epochs)
        now = self._numbers[rows]
        fresh = given > now[:, _EPOCH]
        if fresh.any():
            self._renew(rows[fresh], given[fresh], np.array(hits)[fresh])
            now = self._numbers[rows]
        granted = Granted(rows, np.array(starts), np.array(lengths), np.array(samples), now[:, _OPENING])
        ends = granted.starts + granted.lengths
        self._check(grants, given, granted, now)
        for request, row, blocks in zip(requests, rows.tolist(), new_blocks, strict=True):
            if blocks:
                self._extend(request, row, blocks)
        _refuse(
            grants,
            self.blocks[rows] * self._block_size < ends,
            lambda grant: f"its blocks of {self._block_size} do not cover {grant.start + grant.length} positions",
        )
        self._written[rows] = ends
        self._promised[rows] = now[:, _PROMISED] + granted.samples
        return granted

    def emit(self, rows: Ints, openings: Ints, tokens: Ints) -> Mask:
        """Append one output token to each of ``rows``; whether it was the last. Closed requests take none."""
        now = self._numbers[rows]
        there = now[:, _OPENING] == openings
        known = now[:, _KNOWN] + 1
        done: Mask = there & (known - now[:, _PROMPT] >= now[:, _OUTPUT])
        if not there.all():
            rows, known, tokens, now = rows[there], known[there], tokens[there], now[there]
        self.tokens[rows, known - 1] = tokens
        self.known[rows] = known
        self._promised[rows] = np.maximum(now[:, _PROMISED] - 1, 0)
        return done

    def forget(self, granted: Granted) -> None:
        """The step of ``granted`` failed: its tokens will not come."""
        there = granted.samples & (self._opening[granted.rows] == granted.openings)
        rows = granted.rows[there]
        self._promised[rows] = np.maximum(self._promised[rows] - 1, 0)

    def _renew(self, rows: Ints, epochs: Ints, hits: Ints) -> None:
        """Rows that a higher epoch reaches begin anew, behind what was found in the cache or came in from the host."""
        self._void(rows)
        self._epoch[rows] = epochs
        self._written[rows] = hits
        self._promised[rows] = 0

    def _check(self, grants: tuple[Grant, ...], epochs: Ints, granted: Granted, now: Ints) -> None:
        _rows, starts, lengths, samples, _openings = granted
        ends, known = starts + lengths, now[:, _KNOWN] + now[:, _PROMISED]
        older, misplaced = epochs < now[:, _EPOCH], (lengths < 1) | (starts != now[:, _WRITTEN])
        beyond, answers = ends > known, samples != (ends == known)
        if not (older | misplaced | beyond | answers).any():
            return
        _refuse(grants, older, lambda grant: f"epoch {grant.epoch} is older than that of its last grant")
        _refuse(
            grants,
            misplaced,
            lambda grant: (
                f"grant of {grant.length} from {grant.start}, KV is written to "
                f"{self._written[self._places[grant.request]]}"
            ),
        )
        _refuse(
            grants,
            beyond,
            lambda grant: (
                f"grant to {grant.start + grant.length}, only "
                f"{self.known[self._places[grant.request]]} tokens are known"
            ),
        )
        _refuse(grants, answers, lambda grant: f"samples={grant.samples} at the wrong position")

    def _extend(self, request: int, row: int, blocks: tuple[int, ...]) -> None:
        if min(blocks) < 0 or max(blocks) >= self._kv_blocks:
            raise CallerError(f"request {request}: blocks {blocks} are outside the pool of {self._kv_blocks}")
        held = int(self.blocks[row])
        needed = held + len(blocks)
        self.tables = _widened(self.tables, needed)
        self.tables[row, held:needed] = blocks
        self.blocks[row] = needed

    def _void(self, rows: Ints) -> None:
        self.tables[rows] = 0
        self.blocks[rows] = 0
        self._written[rows] = 0

    def _add_rows(self) -> None:
        """Twice as many rows."""
        count = len(self.seeds)
        self._free = list(range(2 * count - 1, count - 1, -1))
        self.tokens, self.tables, self.seeds = _doubled(self.tokens), _doubled(self.tables), _doubled(self.seeds)
        self._take_numbers(_doubled(self._numbers))


def _doubled(array: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """``array`` with as many rows of zeros behind its own."""
    return np.concatenate((array, np.zeros_like(array)))


def _widened(array: npt.NDArray[Number], width: int) -> npt.NDArray[Number]:
    """``array`` with at least ``width`` columns, new ones 0."""
    if array.shape[1] >= width:
        return array
    grown = np.zeros((array.shape[0], max(width, 2 * array.shape[1])), array.dtype)
    grown[:, : array.shape[1]] = array
    return grown


def _refuse(grants: tuple[Grant, ...], wrong: Mask, said: Callable[[Grant], str]) -> None:
    """`CallerError` for the first grant that is ``wrong``."""
    if wrong.any():
        grant = grants[int(wrong.argmax())]
        raise CallerError(f"request {grant.request}: {said(grant)}")
