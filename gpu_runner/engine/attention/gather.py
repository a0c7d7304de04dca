"""The reference: gather pages, then PyTorch's scaled dot product attention. Works on every device and needs nothing."""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention

from gpu_runner.engine.attention.base import DeviceBatch, PoolShape
from gpu_runner.engine.attention.pages import OnPositionPages, PositionPages


class GatherAttention(OnPositionPages):
    """Attention over copies of the pages that each row needs."""

    name = "gather"

    def __init__(self, shape: PoolShape, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = shape
        super().__init__(PositionPages(shape, dtype, device))
        self._scale = 1 / math.sqrt(shape.head_dim)

    def attend(
        self, layer: int, qkv: torch.Tensor, batch: DeviceBatch, out: torch.Tensor, *, last_only: bool = False
    ) -> None:
        query = self._pages.store(layer, qkv, batch)
        flat = batch.flat
        for first, last in single_groups(flat.contexts[: flat.singles].tolist(), self._shape.block_size):
            self._attend_singles(layer, query, batch, out, slice(first, last))
        for row in range(flat.singles, len(flat.order)):
            self._attend_chunk(layer, query, batch, out, row)

    def _attend_singles(
        self, layer: int, query: torch.Tensor, batch: DeviceBatch, out: torch.Tensor, rows: slice
    ) -> None:
        """Rows of one token each, padded to the longest context among them."""
        longest = int(batch.flat.contexts[rows].max())
        tables = batch.tables[rows, : -(-longest // self._shape.block_size)]
        mask = torch.arange(longest, device=query.device) < batch.contexts[rows, None]
        key = self._gathered(self._pages.keys[layer], tables)[:, :, :longest]
        value = self._gathered(self._pages.values[layer], tables)[:, :, :longest]
        out[rows] = scaled_dot_product_attention(
            query[rows].unsqueeze(2).to(key.dtype),
            key,
            value,
            attn_mask=mask[:, None, None],
            scale=self._scale,
            enable_gqa=True,
        ).squeeze(2)

    def _attend_chunk(self, layer: int, query: torch.Tensor, batch: DeviceBatch, out: torch.Tensor, row: int) -> None:
        """One row of several tokens, the last of which sees the whole context."""
        start, end = int(batch.flat.starts[row]), int(batch.flat.starts[row + 1])
        context, length = int(batch.flat.contexts[row]), end - start
        tables = batch.tables[row : row + 1, : -(-context // self._shape.block_size)]
        key = self._gathered(self._pages.keys[layer], tables)[:, :, :context]
        value = self._gathered(self._pages.values[layer], tables)[:, :, :context]
        places = torch.arange(context, device=query.device)
        mask = places <= places[context - length :, None] if length < context else None
        out[start:end] = scaled_dot_product_attention(
            query[start:end].transpose(0, 1).unsqueeze(0).to(key.dtype),
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale,
            enable_gqa=True,
        )[0].transpose(0, 1)

    def _gathered(self, pages: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
        """``[rows, kv_heads, widest x block_size, head_dim]`` of the pages in ``tables``."""
        rows, widest = tables.shape
        gathered = pages.index_select(0, tables.reshape(-1))
        return gathered.view(rows, widest * self._shape.block_size, *gathered.shape[2:]).transpose(1, 2)


def single_groups(contexts: list[int], block_size: int) -> list[tuple[int, int]]:
    """Ranges of neighbouring rows that may be padded together: none over twice as long as another in its range."""
    groups: list[tuple[int, int]] = []
    first, low, high = 0, 0, 0
    for row, context in enumerate(contexts):
        pages = -(-context // block_size)
        new_low, new_high = (pages, pages) if row == first else (min(low, pages), max(high, pages))
        if new_high > max(2 * new_low, 8):
            groups.append((first, row))
            first, new_low, new_high = row, pages, pages
        low, high = new_low, new_high
    if contexts:
        groups.append((first, len(contexts)))
    return groups
