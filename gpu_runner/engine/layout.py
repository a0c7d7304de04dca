"""From granted rows to one flat batch: NumPy only, so it is testable without a device.

Flat token order is: grants of one token first, then longer grants, each in plan order::

    tokens   d0 d1 d2 | p p p p p | q q q
    starts   0  1  2    3           8      11
             '-singles-'
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_runner.engine.rows import Granted, Ints, Ints32, Rows


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """One step's input. ``T`` tokens of ``R`` rows, of which the first ``singles`` have one token each.

    ``token_ids``, ``positions`` and ``slots`` are ``[T]`` (a slot is block x block size + offset); ``starts`` is
    ``[R + 1]``; ``contexts`` is ``[R]``, positions each row attends to up to its last token; ``tables`` is
    ``[R, widest]``, padded with block 0; ``sampled`` holds flat indices of tokens whose logits are wanted and
    ``sampled_grants`` the index of the grant behind each, ``seeds`` and ``places`` the seed of its request and the
    position that the new token will have, ``sampled_rows`` its row in `Rows`. ``order`` is the grant index behind each
    row. Flat tokens at ``late`` are promised: what the step before sampled for the `Rows` rows ``late_rows``.
    """

    token_ids: Ints
    positions: Ints
    slots: Ints
    starts: Ints32
    contexts: Ints32
    tables: Ints32
    sampled: Ints
    sampled_grants: Ints
    seeds: npt.NDArray[np.uint64]
    places: npt.NDArray[np.uint64]
    order: Ints
    singles: int
    sampled_rows: Ints
    late: Ints
    late_rows: Ints


def flatten(granted: Granted, rows: Rows, block_size: int) -> FlatBatch:
    """Lay out ``granted``, whose tables ``rows`` has extended already."""
    places, begins, lengths, samples, _openings = granted
    several = int(np.count_nonzero(lengths > 1))
    starts = np.arange(len(places) + 1)
    order = starts[:-1]
    singles = len(order) - several
    if not several:  # the usual step, by the shortest way: between two forwards every array is cold
        owner, positions, ends = order, begins, begins + 1
    else:
        order = np.argsort(lengths > 1, kind="stable")
        places, begins, lengths, samples = places[order], begins[order], lengths[order], samples[order]
        ends = begins + lengths
        np.cumsum(lengths, out=starts[1:])
        # Position of every flat token: its row's begin plus its offset inside the row.
        owner = np.repeat(np.arange(len(order)), lengths)
        positions = np.arange(starts[-1]) - starts[owner] + begins[owner]
    tables = np.ascontiguousarray(rows.tables[places, : rows.blocks[places].max()])
    sampled = places[samples]
    rows_of = places[owner] if several else places
    late = np.flatnonzero(positions >= rows.known[rows_of])
    pages, offsets = np.divmod(positions, block_size)
    return FlatBatch(
        token_ids=rows.tokens[rows_of, positions],
        positions=positions,
        slots=tables[owner, pages].astype(np.int64) * block_size + offsets,
        starts=starts.astype(np.int32),
        contexts=ends.astype(np.int32),
        tables=tables,
        sampled=starts[1:][samples] - 1,
        sampled_grants=order[samples],
        seeds=rows.seeds[sampled],
        places=ends[samples].astype(np.uint64),
        order=order,
        singles=singles,
        sampled_rows=sampled,
        late=late,
        late_rows=rows_of[late],
    )
