"""The compiled kernel against the gathering reference, on random pages."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_runner.engine.attention.base import DeviceBatch, PoolShape
from gpu_runner.engine.attention.gather import GatherAttention, single_groups
from gpu_runner.engine.attention.native import NativeAttention
from gpu_runner.engine.config import SHAPES, Rope
from gpu_runner.engine.instance import build_pool
from gpu_runner.engine.layout import FlatBatch
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.model.rope import rope_tables
from gpu_runner.engine.model.weights import SeededWeights
from gpu_runner.engine.native.compiled import UnavailableError, library
from scheduler_core.types.errors import InputError
from tests.engine.conftest import settings_for

BLOCKS = 40
CPU = torch.device("cpu")


def native_or_skip(shape: PoolShape, arithmetic: torch.dtype, kv: torch.dtype, threads: int = 1) -> NativeAttention:
    try:
        return NativeAttention(shape, arithmetic, kv, threads)
    except UnavailableError as reason:
        pytest.skip(f"no compiled kernels here: {reason}")


def batch_of(rows: list[tuple[int, int]], tables: list[list[int]], block_size: int, head_dim: int) -> DeviceBatch:
    """``rows`` are (tokens of this step, context including them), single tokens first."""
    lengths, contexts = [length for length, _ in rows], [context for _, context in rows]
    widest = max(len(table) for table in tables)
    padded = np.array([table + [0] * (widest - len(table)) for table in tables], np.int32)
    positions = np.concatenate([np.arange(context - length, context) for length, context in rows])
    owner = np.repeat(np.arange(len(rows)), lengths)
    slots = padded[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    cos, sin = rope_tables(Rope(), head_dim, 2048)
    flat = FlatBatch(
        token_ids=positions,
        positions=positions,
        slots=slots,
        starts=starts,
        contexts=np.array(contexts, np.int32),
        tables=padded,
        sampled=np.zeros(0, np.int64),
        sampled_grants=np.zeros(0, np.int64),
        seeds=np.zeros(0, np.uint64),
        places=np.zeros(0, np.uint64),
        order=np.arange(len(rows)),
        singles=sum(length == 1 for length in lengths),
        sampled_rows=np.zeros(0, np.int64),
        late=np.zeros(0, np.int64),
        late_rows=np.zeros(0, np.int64),
    )
    return DeviceBatch(
        flat=flat,
        token_ids=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        starts=torch.from_numpy(starts),
        contexts=torch.from_numpy(flat.contexts),
        tables=torch.from_numpy(padded),
        sampled=torch.from_numpy(flat.sampled),
        cos=cos[positions],
        sin=sin[positions],
    )


SHAPES_OF_HEADS = [(9, 9, 32, 16), (14, 2, 64, 16), (6, 2, 16, 32), (8, 1, 48, 16), (40, 2, 16, 16), (4, 4, 128, 64)]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_size"), SHAPES_OF_HEADS)
@pytest.mark.parametrize(
    ("arithmetic", "kv", "tolerance"),
    [
        (torch.float32, torch.float32, 5e-6),
        (torch.float32, torch.bfloat16, 4e-2),
        (torch.bfloat16, torch.bfloat16, 4e-2),
    ],
)
def test_the_kernel_agrees_with_the_reference(
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    arithmetic: torch.dtype,
    kv: torch.dtype,
    tolerance: float,
) -> None:
    """Prompts first, then a mixed step: decodes that read those pages and a chunk that continues one of them."""
    shape = PoolShape(2, BLOCKS, block_size, heads, kv_heads, head_dim)
    native = native_or_skip(shape, arithmetic, kv)
    gather = GatherAttention(shape, kv, CPU)
    order = np.random.default_rng(0).permutation(BLOCKS).tolist()
    tables = [order[0:8], order[8:16], order[16:24]]
    torch.manual_seed(0)
    for rows in ([(1, 1), (37, 37), (90, 90)], [(1, 2), (1, 38), (33, 123)]):
        batch = batch_of(rows, tables, block_size, head_dim)
        tokens = sum(length for length, _ in rows)
        for layer in range(2):
            qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim).to(arithmetic)
            mine, theirs = (torch.zeros(tokens, heads, head_dim, dtype=arithmetic) for _ in range(2))
            native.attend(layer, qkv.clone(), batch, mine)
            gather.attend(layer, qkv.clone(), batch, theirs)
            assert (mine.float() - theirs.float()).abs().max() < tolerance


def test_a_row_is_the_same_bit_for_bit_in_any_company() -> None:
    """One row alone with one thread, then among others with two, and its prompt in two chunks."""
    shape = PoolShape(1, BLOCKS, 16, 6, 2, 32)
    lone, crowded = (
        native_or_skip(shape, torch.float32, torch.float32),
        native_or_skip(shape, torch.float32, torch.float32, 2),
    )
    torch.manual_seed(1)
    qkv = torch.randn(100, 10, 32)
    tables = [[3, 9, 1, 7]]
    whole = torch.zeros(50, 6, 32)
    lone.attend(0, qkv[:50].clone(), batch_of([(50, 50)], tables, 16, 32), whole)
    parts = torch.zeros(80, 6, 32)
    company = [*tables, [20, 21, 22]]
    crowded.attend(0, qkv[:20].clone(), batch_of([(20, 20)], tables, 16, 32), parts)
    mixed = batch_of([(30, 50), (40, 40)], company, 16, 32)
    rest = torch.zeros(70, 6, 32)
    crowded.attend(0, torch.cat((qkv[20:50], qkv[60:])).clone(), mixed, rest)
    assert torch.equal(whole[:20], parts[:20])
    assert torch.equal(whole[20:], rest[:30])


def test_only_the_last_token_of_each_row_is_needed_in_the_last_layer() -> None:
    shape = PoolShape(1, BLOCKS, 16, 4, 2, 32)
    native = native_or_skip(shape, torch.float32, torch.float32)
    qkv = torch.randn(31, 8, 32)
    batch = batch_of([(1, 1), (30, 30)], [[2], [5, 6]], 16, 32)
    full, last = torch.zeros(31, 4, 32), torch.zeros(31, 4, 32)
    native.attend(0, qkv.clone(), batch, full)
    native.attend(0, qkv.clone(), batch, last, last_only=True)
    assert torch.equal(full[[0, 30]], last[[0, 30]])
    assert not last[1:30].any()


@pytest.mark.parametrize(
    ("block_size", "head_dim", "kv", "said"),
    [
        (12, 32, torch.float32, "block size 12"),
        (16, 20, torch.float32, "head size 20"),
        (16, 32, torch.float16, "no kernel"),
    ],
)
def test_what_the_kernel_cannot_do_is_said(block_size: int, head_dim: int, kv: torch.dtype, said: str) -> None:
    native_or_skip(PoolShape(1, 4, 16, 4, 2, 32), torch.float32, torch.float32)
    with pytest.raises(UnavailableError, match=said):
        NativeAttention(PoolShape(1, 4, block_size, 4, 2, head_dim), torch.float32, kv, 1)


def test_without_a_compiler_pages_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SHAPES["tiny"]
    decoder = Decoder(config, SeededWeights(0, config.layers), torch.float32, CPU)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    library.cache_clear()
    try:
        assert build_pool(settings_for("tiny"), decoder, 1).name == "gather"
        with pytest.raises(InputError, match="no C compiler"):
            build_pool(settings_for("tiny", attention="native"), decoder, 1)
    finally:
        library.cache_clear()


def test_a_compiler_that_fails_is_no_disaster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cc: unknown option' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    library.cache_clear()
    try:
        with pytest.raises(UnavailableError, match="unknown option"):
            library()
        assert not list((tmp_path / "headway" / "kernels").iterdir())
    finally:
        library.cache_clear()


def test_rows_are_padded_together_only_when_their_lengths_are_alike() -> None:
    """In pages of 16: 2, 3, 4, 4 pages share a group up to 8; 40 pages opens one; 30 and 64 are within twice."""
    assert single_groups([32, 48, 64, 64, 640, 480, 1024, 16], 16) == [(0, 4), (4, 6), (6, 7), (7, 8)]
    assert single_groups([], 16) == []
