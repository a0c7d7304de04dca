"""The protocol between the model and whatever computes attention."""

from dataclasses import dataclass
from typing import Protocol

import torch

from gpu_runner.engine.layout import FlatBatch


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


class Attention(Protocol):
    """Paged attention. Rows read and write only the pages of their own table."""

    @property
    def name(self) -> str:
        """Name for the fingerprint."""

    @property
    def pool_bytes(self) -> int:
        """Bytes of the KV pages."""

    @property
    def pages(self) -> list[torch.Tensor]:
        """The KV pages, keys and values of each layer, as ``[blocks, ...]``: views of the pool itself."""

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
