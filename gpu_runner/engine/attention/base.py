"""The protocol between the model and whatever computes attention."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from gpu_runner.engine.layout import FlatBatch
from gpu_runner.engine.rows import Ints32


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Sizes of a paged KV cache of ``layers`` x ``blocks`` pages of ``block_size`` positions."""

    layers: int
    blocks: int
    block_size: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A flat batch on the device; ``flat`` is the same on the host. Integer tensors as in `FlatBatch`.

    ``cos`` and ``sin`` are the rotary angles of every flat token, fp32 ``[T, head_dim / 2]``.
    """

    flat: FlatBatch
    token_ids: torch.Tensor
    slots: torch.Tensor
    starts: torch.Tensor
    contexts: torch.Tensor
    tables: torch.Tensor
    sampled: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


class AttentionKernel(Protocol):
    """Paged attention of one batch. Rows read and write only the pages of their own table."""

    def attend(
        self, layer: int, qkv: torch.Tensor, batch: DeviceBatch, out: torch.Tensor, *, last_only: bool = False
    ) -> None:
        """Write the KV of ``qkv`` into the pages of ``layer``, then attend causally over each row's context.

        Args:
            layer: Index of the layer.
            qkv: Queries, keys and values before rotation, ``[T, heads + 2 kv_heads, head_dim]``, contiguous; may be
                overwritten.
            batch: What belongs to whom.
            out: Receives the result, ``[T, heads, head_dim]``, contiguous.
            last_only: Only the last token of each row is wanted; the others of ``out`` may be left as they were.
        """


class Attention(AttentionKernel, Protocol):
    """A paged KV cache and the kernel that works on it."""

    @property
    def name(self) -> str:
        """Name for the fingerprint."""

    @property
    def pool_bytes(self) -> int:
        """Bytes of the KV pages."""

    @property
    def pages(self) -> list[torch.Tensor]:
        """The KV pages, keys and values of each layer, as ``[blocks, ...]``: views of the pool itself."""


class FixedAttention(AttentionKernel, Protocol):
    """Attention for decode batches of one size, whose device work may be captured once and replayed."""

    def plan(self, contexts: Ints32, tables: Ints32) -> None:
        """What the host has to prepare before a replay for rows of ``contexts`` ``[R]`` and ``tables`` ``[R, W]``."""


@runtime_checkable
class CapturableAttention(Attention, Protocol):
    """Attention whose decode batches can be captured."""

    @property
    def spare_block(self) -> int:
        """A block outside the pool, for rows that pad a batch."""

    def fixed(self, rows: int, width: int) -> FixedAttention:
        """A kernel on the same pages for batches of ``rows`` rows with tables of at most ``width`` blocks."""
