"""Paged attention in Triton, for CUDA devices; Triton's interpreter runs the same kernel on a CPU for checking.

Pages have the layout of `pages.py`. One program serves a tile of query tokens of one row and one KV head, with all
query heads of that KV head, and walks over the row's pages with an online softmax (Milakov and Gimelshein, 2018; Dao
et al., "FlashAttention", 2022).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from gpu_runner.engine.attention.base import DeviceBatch, PoolShape
from gpu_runner.engine.attention.pages import OnPositionPages, PositionPages
from gpu_runner.engine.layout import FlatBatch
from gpu_runner.engine.rows import Ints, Ints32

_TILE_ROWS = 16
"""Rows of a tile, queries x heads, that a matrix instruction needs at least."""


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def] # noqa: PLR0913 - a kernel's arguments
    query, keys, values, out, tile_rows, tile_starts, starts, contexts, tables, table_width, scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
    page: tl.constexpr, padded_page: tl.constexpr, tile_tokens: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    group: tl.constexpr = heads // kv_heads
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row = tl.load(tile_rows + tile)
    begin, end = tl.load(starts + row), tl.load(starts + row + 1)
    context = tl.load(contexts + row)
    # Lane m of the tile is head m % group of token m // group.
    lane = tl.arange(0, rows)
    token = tl.load(tile_starts + tile) + lane // group
    live = (lane < tile_tokens * group) & (begin + token < end)
    position = context - (end - begin) + token
    dim = tl.arange(0, padded_dim)
    wide = dim < head_dim
    places = ((begin + token) * heads + kv_head * group + lane % group)[:, None] * head_dim + dim[None, :]
    mask = live[:, None] & wide[None, :]
    # Products run in the format of the pages (matrix units for the half formats), sums in fp32.
    kind = keys.dtype.element_ty
    asked = tl.load(query + places, mask=mask, other=0.0).to(kind)
    best = tl.full((rows,), float("-inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    mixed = tl.zeros((rows, padded_dim), tl.float32)
    reach = tl.minimum(tl.max(tl.where(live, position, -1), axis=0) + 1, context)
    offset = tl.arange(0, padded_page)
    for first in range(0, reach, page):
        block = tl.load(tables + row * table_width + first // page).to(tl.int64)
        seen = first + offset
        there = (offset < page) & (seen < reach)
        cells = ((block * page + offset[:, None]) * kv_heads + kv_head) * head_dim + dim[None, :]
        held = there[:, None] & wide[None, :]
        key = tl.load(keys + cells, mask=held, other=0.0)
        value = tl.load(values + cells, mask=held, other=0.0)
        score = tl.dot(asked, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(there[None, :] & (seen[None, :] <= position[:, None]), score, float("-inf"))
        # Position 0 is visible to every live lane, so `high` is finite from the first page on.
        high = tl.maximum(best, tl.max(score, axis=1))
        high = tl.where(live, high, 0.0)
        weight = tl.exp(score - high[:, None])
        keep = tl.exp(best - high)
        total = total * keep + tl.sum(weight, axis=1)
        mixed = mixed * keep[:, None] + tl.dot(weight.to(kind), value, input_precision="ieee")
        best = high
    result = mixed / tl.where(live, total, 1.0)[:, None]
    tl.store(out + places, result.to(out.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Row and first token of each tile, on the device, and tokens per tile."""

    rows: torch.Tensor
    starts: torch.Tensor
    tokens: int


class TritonAttention(OnPositionPages):
    """The fallback on CUDA where no library of paged kernels is installed."""

    name = "triton"

    def __init__(self, shape: PoolShape, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = shape
        super().__init__(PositionPages(shape, dtype, device, spare=1))
        self._scale = 1 / math.sqrt(shape.head_dim)
        self._planned: tuple[FlatBatch, bool, _Tiles] | None = None

    @property
    def spare_block(self) -> int:
        return self._shape.blocks

    def fixed(self, rows: int, width: int) -> "FixedTriton":
        return FixedTriton(self, rows)

    def attend(
        self, layer: int, qkv: torch.Tensor, batch: DeviceBatch, out: torch.Tensor, *, last_only: bool = False
    ) -> None:
        self.run(self._tiles(batch.flat, last_only=last_only), layer, qkv, batch, out)

    def run(self, tiles: _Tiles, layer: int, qkv: torch.Tensor, batch: DeviceBatch, out: torch.Tensor) -> None:
        """Write the KV of ``qkv``, then attend from the tokens of ``tiles``."""
        query, shape = self._pages.store(layer, qkv, batch), self._shape
        group = shape.heads // shape.kv_heads
        _attend[(tiles.rows.shape[0], shape.kv_heads)](
            query.contiguous(),
            self._pages.keys[layer],
            self._pages.values[layer],
            out,
            tiles.rows,
            tiles.starts,
            batch.starts,
            batch.contexts,
            batch.tables,
            batch.tables.shape[1],
            self._scale,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            padded_dim=max(16, triton.next_power_of_2(shape.head_dim)),
            page=shape.block_size,
            padded_page=max(16, triton.next_power_of_2(shape.block_size)),
            tile_tokens=tiles.tokens,
            rows=max(_TILE_ROWS, triton.next_power_of_2(tiles.tokens * group)),
        )

    def tiles(self, lengths: Ints, *, last_only: bool) -> _Tiles:
        """Tiles over rows of ``lengths`` tokens, or over the last token of each."""
        tokens = 1 if last_only else self._tile_tokens(int(lengths.max()))
        firsts = lengths - 1 if last_only else np.zeros_like(lengths)
        counts = -(-(lengths - firsts) // tokens)
        rows = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = (firsts[rows] + within * tokens).astype(np.int32)
        device = self._pages.keys[0].device
        return _Tiles(torch.from_numpy(rows).to(device), torch.from_numpy(starts).to(device), tokens)

    def _tiles(self, flat: FlatBatch, *, last_only: bool) -> _Tiles:
        """The tiles of a batch, made once for all of its layers that want the same tokens."""
        if self._planned is None or self._planned[0] is not flat or self._planned[1] != last_only:
            self._planned = (flat, last_only, self.tiles(np.diff(flat.starts), last_only=last_only))
        return self._planned[2]

    def _tile_tokens(self, longest: int) -> int:
        """Query tokens per tile: one when all rows decode, else enough to fill a few matrix instructions."""
        group = self._shape.heads // self._shape.kv_heads
        return 1 if longest == 1 else max(1, 4 * _TILE_ROWS // group)


class FixedTriton:
    """Decode batches of one size: their tiles are always the same, and everything else is read on the device."""

    def __init__(self, attention: TritonAttention, rows: int) -> None:
        self._attention = attention
        self._tiles = attention.tiles(np.ones(rows, np.int64), last_only=False)

    def plan(self, contexts: Ints32, tables: Ints32) -> None:
        """Nothing: the kernel reads contexts and tables on the device."""

    def attend(
        self,
        layer: int,
        qkv: torch.Tensor,
        batch: DeviceBatch,
        out: torch.Tensor,
        *,
        last_only: bool = False,
    ) -> None:
        self._attention.run(self._tiles, layer, qkv, batch, out)
