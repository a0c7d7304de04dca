"""The compiled kernels, by vectors and by Intel AMX: against exact attention, and bit for bit against themselves.

What needs AMX is skipped where there is none.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runner.engine.attention.base import PoolShape
from gpu_runner.engine.attention.gather import GatherAttention
from gpu_runner.engine.attention.native import NativeAttention
from gpu_runner.engine.native.compiled import UnavailableError
from tests.engine.test_attention import CPU, batch_of

BF16 = torch.bfloat16
SHAPES_OF_HEADS = [
    (9, 9, 32, 16),
    (12, 4, 64, 32),
    (14, 2, 64, 16),
    (40, 2, 32, 64),  # 20 query heads a group: more than a tile has rows
    (35, 1, 32, 16),  # more than two tiles have
    (6, 2, 96, 48),
    (4, 4, 128, 96),
    (3, 1, 160, 32),
]


Shape = tuple[int, int, int, int]
"""Heads, KV heads, head size, block size."""


@dataclass(frozen=True)
class Kernel:
    """Formats of activations and pages, and whether AMX is denied."""

    arithmetic: torch.dtype
    pages: torch.dtype
    denied: bool = False


AMX = Kernel(BF16, BF16)
VECTORS = {
    "fp32": Kernel(torch.float32, torch.float32),
    "fp32 on bf16": Kernel(torch.float32, BF16),
    "bf16 by vectors": Kernel(BF16, BF16, denied=True),
}
KERNELS = {"bf16 by AMX": AMX, **VECTORS}


def pool(shape: Shape, positions: int, kernel: Kernel = AMX, threads: int = 1) -> NativeAttention:
    """One layer with room for ``positions``, twice."""
    heads, kv_heads, head_dim, block_size = shape
    sizes = PoolShape(1, _blocks(shape, positions), block_size, heads, kv_heads, head_dim)
    with pytest.MonkeyPatch.context() as patch:
        if kernel.denied:
            patch.setenv("HEADWAY_AMX", "0")
        try:
            made = NativeAttention(sizes, kernel.arithmetic, kernel.pages, threads)
        except UnavailableError as reason:
            pytest.skip(f"no compiled kernels here: {reason}")
    if kernel is AMX and made.name != "native-amx":
        pytest.skip("this machine has no Intel AMX, or does not let this process use it")
    return made


def table(shape: Shape, positions: int, seed: int = 0) -> list[int]:
    """Blocks for ``positions`` in no order, from the first half of a pool."""
    blocks: list[int] = np.random.default_rng(seed).permutation(_blocks(shape, positions) // 2).tolist()
    return blocks


def _blocks(shape: Shape, positions: int) -> int:
    return 2 * math.ceil(positions / shape[3])


def inputs(shape: Shape, tokens: int, seed: int = 0, kernel: Kernel = AMX) -> torch.Tensor:
    heads, kv_heads, head_dim, _ = shape
    drawn = torch.randn(tokens, heads + 2 * kv_heads, head_dim, generator=torch.Generator().manual_seed(seed))
    return drawn.to(kernel.arithmetic)


def attend(
    attention: NativeAttention | GatherAttention,
    shape: Shape,
    qkv: torch.Tensor,
    rows: list[tuple[int, int]],
    tables: list[list[int]],
) -> torch.Tensor:
    """What attention gives for ``rows`` of (tokens of this step, context including them)."""
    out = torch.full((qkv.shape[0], shape[0], shape[2]), math.nan, dtype=qkv.dtype)
    attention.attend(0, qkv.clone(), batch_of(rows, tables, shape[3], shape[2]), out)
    return out


def in_parts(
    attention: NativeAttention, shape: Shape, qkv: torch.Tensor, cuts: list[int], blocks: list[int]
) -> torch.Tensor:
    """A prompt computed in chunks that end at ``cuts``."""
    ends = sorted({cut for cut in cuts if 0 < cut < len(qkv)} | {len(qkv)})
    parts = [
        attend(attention, shape, qkv[begin:end], [(end - begin, end)], [blocks])
        for begin, end in itertools.pairwise([0, *ends])
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("shape", SHAPES_OF_HEADS)
def test_it_agrees_with_exact_attention(shape: Shape) -> None:
    """A prompt longer than a span of scores (512), a chunk after it, and a decode, beside fp32 on the same inputs.

    Rounding the result, the weights, and queries and keys after rotation to bf16 each cost up to 2^-9 of the largest
    value that is mixed; all together stay below 2^-6 of it, and below 2^-8 of it in the mean.
    """
    heads, kv_heads, head_dim, block_size = shape
    mine = pool(shape, 700)
    exact = GatherAttention(
        PoolShape(1, _blocks(shape, 700), block_size, heads, kv_heads, head_dim), torch.float32, CPU
    )
    qkv, blocks = inputs(shape, 651), table(shape, 700)
    for begin, end in ((0, 545), (545, 650), (650, 651)):
        rows = [(end - begin, end)]
        got = attend(mine, shape, qkv[begin:end], rows, [blocks]).float()
        expected = attend(exact, shape, qkv[begin:end].float(), rows, [blocks])
        wrong = (got - expected).abs()
        largest = qkv[:end, heads + kv_heads :].abs().max()
        assert wrong.max() < largest * 2**-6
        assert wrong.mean() < expected.abs().mean() * 2**-8


@pytest.mark.parametrize("shape", SHAPES_OF_HEADS[:4])
def test_scores_of_any_size_are_weighed_like_exact_ones(shape: Shape) -> None:
    """Keys that grow with the position: the largest score moves on from span to span, by thousands.

    Weights are nearly all or nothing then, so only rows are compared in which rounding queries and keys cannot change
    which position wins: those where the winner leads by more than a hundredth of its score.
    """
    heads, kv_heads, head_dim, _ = shape
    qkv = inputs(shape, 1100)
    qkv[:, heads : heads + kv_heads] *= torch.linspace(0.1, 60, 1100)[:, None, None]
    got = attend(pool(shape, 1100), shape, qkv, [(1100, 1100)], [table(shape, 1100)]).float()
    batch = batch_of([(1100, 1100)], [table(shape, 1100)], shape[3], head_dim)
    half = head_dim // 2
    turned = qkv[:, : heads + kv_heads].float()
    low, high, cos, sin = turned[..., :half], turned[..., half:], batch.cos[:, None], batch.sin[:, None]
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
    value = qkv[:, heads + kv_heads :].float()
    checked = 0
    for head in range(heads):
        of = head // (heads // kv_heads)
        scores = turned[:, head] @ turned[:, heads + of].T / math.sqrt(head_dim)
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
        best = scores[1:].topk(2)
        clear = best.values[:, 0] - best.values[:, 1] > best.values[:, 0].abs() * 0.01 + 20
        winner = value[best.indices[:, 0], of]
        assert torch.equal(got[1:, head][clear], winner[clear])
        checked += int(clear.sum())
    assert checked > 100


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from(SHAPES_OF_HEADS),
    tokens=st.integers(1, 640),
    cuts=st.lists(st.integers(1, 639), max_size=4),
    company=st.lists(st.integers(1, 70), max_size=3),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_a_row_is_the_same_bit_for_bit_in_any_chunks_and_company(
    kernel: str, shape: Shape, tokens: int, cuts: list[int], company: list[int], threads: int, seed: int
) -> None:
    """A prompt at once; in chunks; its last chunk or token among other rows, with one thread or two."""
    qkv, blocks = inputs(shape, tokens, seed, KERNELS[kernel]), table(shape, 640, seed)
    whole = attend(pool(shape, 640, KERNELS[kernel]), shape, qkv, [(tokens, tokens)], [blocks])
    chunked = pool(shape, 640, KERNELS[kernel], threads)
    assert torch.equal(in_parts(chunked, shape, qkv, cuts, blocks), whole)
    begin = max((cut for cut in cuts if cut < tokens), default=tokens - 1)
    first = _blocks(shape, 640) // 2
    spare = itertools.count(first)
    others = [[next(spare) for _ in range(math.ceil(n / shape[3]))] for n in company]
    if others and max(map(max, others)) >= 2 * first:
        return
    rows = [(tokens - begin, tokens), *((n, n) for n in company)]
    ordered = sorted(range(len(rows)), key=lambda row: rows[row][0] > 1)
    pieces = [qkv[begin:], *(inputs(shape, n, seed + n, KERNELS[kernel]) for n in company)]
    tables = [blocks, *others]
    got = attend(
        chunked,
        shape,
        torch.cat([pieces[row] for row in ordered]),
        [rows[row] for row in ordered],
        [tables[row] for row in ordered],
    )
    place = sum(rows[row][0] for row in ordered[: ordered.index(0)])
    assert torch.equal(got[place : place + tokens - begin], whole[begin:])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", SHAPES_OF_HEADS)
def test_tokens_decoded_one_by_one_are_those_of_the_prompt(shape: Shape, kernel: str) -> None:
    qkv, blocks = inputs(shape, 70, kernel=KERNELS[kernel]), table(shape, 96)
    whole = attend(pool(shape, 96, KERNELS[kernel]), shape, qkv, [(70, 70)], [blocks])
    assert torch.equal(in_parts(pool(shape, 96, KERNELS[kernel]), shape, qkv, list(range(30, 70)), blocks), whole)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", SHAPES_OF_HEADS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, 3e38])
def test_what_lies_in_slots_not_yet_written_does_not_matter(shape: Shape, garbage: float, kernel: str) -> None:
    qkv, blocks = inputs(shape, 77, kernel=KERNELS[kernel]), table(shape, 96)
    clean, dirty = pool(shape, 96, KERNELS[kernel]), pool(shape, 96, KERNELS[kernel])
    for page in dirty.pages:
        page.fill_(garbage)
    cuts = [1, 5, 33, 48, 76]
    assert torch.equal(in_parts(dirty, shape, qkv, cuts, blocks), in_parts(clean, shape, qkv, cuts, blocks))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", SHAPES_OF_HEADS)
def test_blocks_can_be_copied_whole(shape: Shape, kernel: str) -> None:
    """Blocks come first in the pages: a row goes on from copies of its blocks as if nothing had happened."""
    qkv, blocks = inputs(shape, 80, kernel=KERNELS[kernel]), table(shape, 96)
    mine = pool(shape, 96, KERNELS[kernel])
    attend(mine, shape, qkv[:79], [(79, 79)], [blocks])
    copies = [block + _blocks(shape, 96) // 2 for block in blocks]
    for page in mine.pages:
        page[copies] = page[blocks]
    expected = attend(mine, shape, qkv[79:], [(1, 80)], [blocks])
    assert torch.equal(attend(mine, shape, qkv[79:], [(1, 80)], [copies]), expected)


def test_only_the_last_token_of_each_row_is_needed_in_the_last_layer() -> None:
    shape = (6, 2, 64, 16)
    mine, qkv = pool(shape, 96), inputs(shape, 41)
    batch = batch_of([(1, 1), (40, 40)], [[2], [5, 4, 3]], 16, 64)
    full, last = torch.zeros(41, 6, 64, dtype=BF16), torch.zeros(41, 6, 64, dtype=BF16)
    mine.attend(0, qkv.clone(), batch, full)
    mine.attend(0, qkv.clone(), batch, last, last_only=True)
    assert torch.equal(full[[0, 40]], last[[0, 40]])
    assert not last[1:40].any()


def test_where_amx_is_denied_or_does_not_fit_vectors_do_the_same() -> None:
    shape = (6, 2, 64, 16)
    qkv, blocks = inputs(shape, 60), table(shape, 96)
    by_tiles = attend(pool(shape, 96), shape, qkv, [(60, 60)], [blocks])
    for name, kernel in VECTORS.items():
        assert pool(shape, 96, kernel).name == "native", name
    assert NativeAttention(PoolShape(1, 2, 16, 6, 2, 48), BF16, BF16, 1).name == "native"
    by_vectors = attend(pool(shape, 96, VECTORS["bf16 by vectors"]), shape, qkv, [(60, 60)], [blocks])
    assert (by_tiles.float() - by_vectors.float()).abs().max() < 4e-2
