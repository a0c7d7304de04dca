"""From granted rows to one flat batch: NumPy only, so it is testable without a device.

Flat token order is: grants of one token first, then longer grants, each in plan order::

    tokens   d0 d1 d2 | p p p p p | q q q
    starts   0  1  2    3           8      11
             '-singles-'
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_runner.engine.rows import Row
from scheduler_core.types.plan import Grant

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """One step's input. ``T`` tokens of ``R`` rows, of which the first ``singles`` have one token each.

    ``token_ids``, ``positions`` and ``slots`` are ``[T]`` (a slot is block x block size + offset); ``starts`` is
    ``[R + 1]``; ``contexts`` is ``[R]``, positions each row attends to up to its last token; ``tables`` is
    ``[R, widest]``, padded with block 0; ``sampled`` holds flat indices of tokens whose logits are wanted and
    ``sampled_grants`` the index of the grant behind each, ``seeds`` and ``places`` the seed of its request and the
    position that the new token will have. ``order`` is the grant index behind each row.
    """

    token_ids: Ints
    positions: Ints
    slots: Ints
    starts: Ints32
    contexts: Ints32
    tables: Ints32
    sampled: Ints
    sampled_grants: tuple[int, ...]
    seeds: npt.NDArray[np.uint64]
    places: npt.NDArray[np.uint64]
    order: tuple[int, ...]
    singles: int


def flatten(grants: tuple[Grant, ...], rows: list[Row], block_size: int) -> FlatBatch:
    """Lay out ``grants`` (``rows[i]`` belongs to ``grants[i]`` and has its table extended already)."""
    singles = [i for i, grant in enumerate(grants) if grant.length == 1]
    order = singles + [i for i, grant in enumerate(grants) if grant.length > 1]
    lengths = np.array([grants[i].length for i in order], np.int64)
    begins = np.array([grants[i].start for i in order], np.int64)
    starts = np.zeros(len(order) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    tables = _tables([rows[i] for i in order])
    # Position of every flat token: its row's begin plus its offset inside the row.
    owner = np.repeat(np.arange(len(order)), lengths)
    positions = np.arange(starts[-1], dtype=np.int64) - starts[:-1].astype(np.int64)[owner] + begins[owner]
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    parts = [rows[i].tokens[grants[i].start : grants[i].start + grants[i].length] for i in order]
    sampled = [place for place, i in enumerate(order) if grants[i].samples]
    return FlatBatch(
        token_ids=np.concatenate(parts),
        positions=positions,
        slots=slots,
        starts=starts,
        contexts=(begins + lengths).astype(np.int32),
        tables=tables,
        sampled=starts[1:][sampled].astype(np.int64) - 1,
        sampled_grants=tuple(order[place] for place in sampled),
        seeds=np.array([rows[order[place]].request.seed for place in sampled], np.uint64),
        places=np.array([grants[order[place]].start + grants[order[place]].length for place in sampled], np.uint64),
        order=tuple(order),
        singles=len(singles),
    )


def _tables(rows: list[Row]) -> Ints32:
    tables = np.zeros((len(rows), max(row.blocks for row in rows)), np.int32)
    for place, row in enumerate(rows):
        tables[place, : row.blocks] = row.table[: row.blocks]
    return tables
