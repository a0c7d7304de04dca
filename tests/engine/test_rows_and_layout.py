import numpy as np
import pytest

from gpu_runner.engine.layout import FlatBatch, flatten
from gpu_runner.engine.prompts import prompt_ids
from gpu_runner.engine.rows import Rows
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import CallerError
from scheduler_core.types.plan import Grant, Phase, Rebind


def opened(*prompts: int) -> Rows:
    """Rows 0, 1, ... with these prompt lengths, in a pool of 10 blocks of 4 positions."""
    rows = Rows(kv_blocks=10, block_size=4)
    for index, length in enumerate(prompts):
        planned = PlannedRequest(index, 0, length, 3, 3, seed=index)
        rows.open(planned, prompt_ids(planned, vocab_size=50, prefix_block_size=4))
    return rows


def grant(
    request: int, start: int, length: int, blocks: tuple[int, ...] = (), *, samples: bool = False, hit: int = 0
) -> Grant:
    return Grant(request, 0, start, length, blocks, samples, Phase.PREFILL, hit)


def batch(rows: Rows, *grants: Grant) -> FlatBatch:
    return flatten(rows.apply(grants), rows, 4)


def test_single_tokens_come_first_and_slots_follow_the_tables() -> None:
    """Request 0 gets positions 0-4 of blocks (7, 2); request 1 position 0 of block 5.

    Flat order is request 1 (one token), then request 0. Slots: 5 x 4 + 0 = 20; positions 0-3 lie in block 7, slots
    28-31, position 4 in block 2, slot 8. Contexts are 1 and 5; only request 1 samples, at flat index 0, grant 1.
    """
    flat = batch(opened(6, 1), grant(0, 0, 5, (7, 2)), grant(1, 0, 1, (5,), samples=True))
    assert flat.order.tolist() == [1, 0]
    assert flat.singles == 1
    assert flat.slots.tolist() == [20, 28, 29, 30, 31, 8]
    assert flat.positions.tolist() == [0, 0, 1, 2, 3, 4]
    assert flat.starts.tolist() == [0, 1, 6]
    assert flat.contexts.tolist() == [1, 5]
    assert flat.tables.tolist() == [[5, 0], [7, 2]]
    assert flat.sampled.tolist() == [0]
    assert flat.sampled_grants.tolist() == [1]


def test_a_later_chunk_continues_in_the_same_table() -> None:
    """Positions 3 and 4 after a first chunk of 3: slot 3 of block 7 is 31, then block 2 begins at slot 8."""
    rows = opened(5)
    batch(rows, grant(0, 0, 3, (7,)))
    flat = batch(rows, grant(0, 3, 2, (2,), samples=True))
    assert flat.slots.tolist() == [31, 8]
    assert flat.sampled.tolist() == [1]


def test_a_prefix_hit_starts_behind_what_was_found() -> None:
    flat = batch(opened(6), grant(0, 4, 2, (3, 1), samples=True, hit=4))
    assert flat.positions.tolist() == [4, 5]
    assert flat.slots.tolist() == [4, 5]
    assert flat.contexts.tolist() == [6]


def test_a_higher_epoch_brings_a_fresh_table() -> None:
    rows = opened(6)
    batch(rows, grant(0, 0, 6, (7, 2), samples=True))
    flat = batch(rows, Grant(0, 1, 0, 6, (4, 5), True, Phase.RECOMPUTE))
    assert flat.slots.tolist() == [16, 17, 18, 19, 20, 21]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (grant(9, 0, 1, (0,)), "not open"),
        (grant(0, 1, 1, (0,)), "KV is written to 0"),
        (grant(0, 0, 0, (0,)), "grant of 0"),
        (grant(0, 0, 7, (0, 1)), "only 6 tokens are known"),
        (grant(0, 0, 5, (0,)), "do not cover 5 positions"),
        (grant(0, 0, 2, (10,)), "outside the pool of 10"),
        (grant(0, 0, 2, (-1,)), "outside the pool of 10"),
        (grant(0, 0, 2, (0,), samples=True), "samples=True at the wrong position"),
        (grant(0, 0, 6, (0, 1)), "samples=False at the wrong position"),
        (Grant(0, -2, 0, 1, (0,), False, Phase.PREFILL), "older than"),
    ],
)
def test_a_grant_against_the_rules_is_refused(bad: Grant, said: str) -> None:
    with pytest.raises(CallerError, match=said):
        opened(6).apply((bad,))


def test_opening_twice_is_refused_and_closing_twice_is_not() -> None:
    rows = opened(3)
    planned = PlannedRequest(0, 0, 3, 1, 1, seed=0)
    with pytest.raises(CallerError, match="open already"):
        rows.open(planned, prompt_ids(planned, vocab_size=9, prefix_block_size=4))
    rows.close(0)
    rows.close(0)
    rows.release(0)


def test_rows_and_tables_grow_and_keep_what_they_hold() -> None:
    """200 requests, one of 700 tokens: more rows, wider tables and longer token rows than there were at first."""
    rows = Rows(kv_blocks=1000, block_size=4)
    prompts = {index: 700 if index == 150 else 1 + index % 7 for index in range(200)}
    for index, length in prompts.items():
        planned = PlannedRequest(index, 0, length, 2, 2, seed=index)
        rows.open(planned, prompt_ids(planned, vocab_size=50, prefix_block_size=4))
    blocks = iter(range(1000))
    tables = {index: tuple(next(blocks) for _ in range(-(-length // 4))) for index, length in prompts.items()}
    flat = batch(rows, *(grant(i, 0, length, tables[i], samples=True) for i, length in prompts.items()))
    assert rows.block_tables() == tables
    ids = dict(zip(flat.order.tolist(), np.split(flat.token_ids, flat.starts[1:-1]), strict=True))
    for index, length in prompts.items():
        planned = PlannedRequest(index, 0, length, 2, 2, seed=index)
        assert ids[index].tolist() == prompt_ids(planned, vocab_size=50, prefix_block_size=4).tolist()
    rows.close(150)
    assert 150 not in rows.block_tables()


def test_an_exchange_of_entries_that_are_not_there_is_refused() -> None:
    rows = opened(6)
    batch(rows, grant(0, 0, 6, (7, 2), samples=True))
    rows.rebind(Rebind(0, 0, 1, (5,)))
    assert rows.block_tables() == {0: (7, 5)}
    for wrong in (Rebind(0, 0, 1, (5, 6)), Rebind(0, 1, 0, (5,)), Rebind(3, 0, 0, (5,)), Rebind(0, 0, -1, (5,))):
        with pytest.raises(CallerError, match="to exchange"):
            rows.rebind(wrong)
