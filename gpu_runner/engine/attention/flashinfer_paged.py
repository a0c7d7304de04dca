"""Paged attention by FlashInfer, for CUDA devices where it is installed. Not yet proven on a device.

Pages have the layout ``NHD`` of FlashInfer, which is that of `pages.py`. Its wrappers are told the tables of a batch
once (``plan``) and then run for every layer.
"""

import importlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpu_runner.engine.attention.base import DeviceBatch, PoolShape
from gpu_runner.engine.attention.pages import OnPositionPages, PositionPages
from gpu_runner.engine.layout import FlatBatch
from gpu_runner.engine.native.compiled import UnavailableError
from gpu_runner.engine.rows import Ints32

_WORKSPACE_BYTES = 128 * 1024**2
"""The size that FlashInfer's documentation recommends for its split-k results."""
_HEAD_DIMS = (64, 128, 256)
_TENSOR_CORES_FROM = 4
"""Query heads per KV head from which a decode pays on matrix units, by FlashInfer's documentation."""
_TURNS = 2
"""Plans that may be in use at once: one step computes while the next is planned."""


@dataclass(frozen=True, slots=True)
class PageLists:
    """Tables as FlashInfer reads them, all int32 on the host.

    Row ``i`` owns ``pages[starts[i] : starts[i + 1]]``; its last page holds ``last[i]`` positions, at least one.
    """

    starts: torch.Tensor
    pages: torch.Tensor
    last: torch.Tensor


def page_lists(contexts: Ints32, tables: Ints32, block_size: int) -> PageLists:
    """``tables`` ``[R, widest]`` cut to the pages that ``contexts`` ``[R]`` reach."""
    counts = -(-contexts // block_size)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    pages = tables[np.arange(tables.shape[1]) < counts[:, None]].astype(np.int32)
    last = ((contexts - 1) % block_size + 1).astype(np.int32)
    return PageLists(*(torch.from_numpy(array) for array in (starts, pages, last)))


class FlashInferAttention(OnPositionPages):
    """FlashInfer's decode kernel for steps of single tokens, its append kernel for all others."""

    name = "flashinfer"

    def __init__(self, shape: PoolShape, dtype: torch.dtype, device: torch.device) -> None:
        """`UnavailableError` says why this backend cannot serve such a pool here."""
        if dtype not in (torch.float16, torch.bfloat16):
            raise UnavailableError(f"FlashInfer has no kernel for {dtype} pages")
        if shape.head_dim not in _HEAD_DIMS:
            raise UnavailableError(f"FlashInfer has no kernel for head size {shape.head_dim}")
        try:
            self._library: Any = importlib.import_module("flashinfer")
        except ImportError as reason:
            raise UnavailableError(f"FlashInfer cannot be imported: {reason}") from None
        self._shape = shape
        self._dtype = dtype
        self._device = device
        super().__init__(PositionPages(shape, dtype, device, spare=1))
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._appends = [
            self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD") for _ in range(_TURNS)
        ]
        self._decodes = [self._decode_wrapper() for _ in range(_TURNS)]
        self._turn = 0
        self._planned: tuple[FlatBatch, Any] | None = None
        self._try_kernels()

    @property
    def spare_block(self) -> int:
        return self._shape.blocks

    def attend(
        self,
        layer: int,
        qkv: torch.Tensor,
        batch: DeviceBatch,
        out: torch.Tensor,
        *,
        last_only: bool = False,
    ) -> None:
        self.run(self._plan(batch.flat), layer, qkv, batch, out)

    def run(self, wrapper: Any, layer: int, qkv: torch.Tensor, batch: DeviceBatch, out: torch.Tensor) -> None:
        """Write the KV of ``qkv``, then attend by a ``wrapper`` that was told the batch."""
        query = self._pages.store(layer, qkv, batch).contiguous().to(self._dtype)
        wrapper.run(query, (self._pages.keys[layer], self._pages.values[layer]), out=out)

    def fixed(self, rows: int, width: int) -> "FixedFlashInfer":
        return FixedFlashInfer(self, self._fixed_wrapper(rows, width))

    def plan_decode(self, wrapper: Any, contexts: Ints32, tables: Ints32) -> None:
        """Tell a decode ``wrapper`` the pages of each row."""
        lists, shape = page_lists(contexts, tables, self._shape.block_size), self._shape
        wrapper.plan(
            lists.starts, lists.pages.to(self._device), lists.last,
            shape.heads, shape.kv_heads, shape.head_dim, shape.block_size, **self._formats(),
        )  # fmt: skip

    def _plan(self, flat: FlatBatch) -> Any:
        """The wrapper told of ``flat``, once for all layers."""
        if self._planned is None or self._planned[0] is not flat:
            self._turn = (self._turn + 1) % _TURNS
            if flat.singles == len(flat.order):
                wrapper = self._decodes[self._turn]
                self.plan_decode(wrapper, flat.contexts, flat.tables)
            else:
                wrapper = self._appends[self._turn]
                self._plan_append(wrapper, flat)
            self._planned = (flat, wrapper)
        return self._planned[1]

    def _plan_append(self, wrapper: Any, flat: FlatBatch) -> None:
        lists, shape = page_lists(flat.contexts, flat.tables, self._shape.block_size), self._shape
        wrapper.plan(
            torch.from_numpy(flat.starts), lists.starts, lists.pages.to(self._device), lists.last,
            shape.heads, shape.kv_heads, shape.head_dim, shape.block_size, causal=True, **self._formats(),
        )  # fmt: skip

    def _formats(self) -> dict[str, Any]:
        scale = 1 / math.sqrt(self._shape.head_dim)
        return {"q_data_type": self._dtype, "kv_data_type": self._dtype, "sm_scale": scale}

    def _decode_wrapper(self, **buffers: Any) -> Any:
        tensor_cores = self._shape.heads // self._shape.kv_heads >= _TENSOR_CORES_FROM
        kind = self._library.BatchDecodeWithPagedKVCacheWrapper
        return kind(self._workspace, "NHD", use_tensor_cores=tensor_cores, **buffers)

    def _fixed_wrapper(self, rows: int, width: int) -> Any:
        def buffer(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=self._device)

        return self._decode_wrapper(
            use_cuda_graph=True,
            paged_kv_indptr_buffer=buffer(rows + 1),
            paged_kv_indices_buffer=buffer(rows * width),
            paged_kv_last_page_len_buffer=buffer(rows),
        )

    def _try_kernels(self) -> None:
        """Run one decode in the spare block: kernels are compiled on first use, which may fail on this machine."""
        query = torch.zeros(1, self._shape.heads, self._shape.head_dim, dtype=self._dtype, device=self._device)
        table = np.array([[self.spare_block]], np.int32)
        try:
            self.plan_decode(self._decodes[0], np.ones(1, np.int32), table)
            self._decodes[0].run(query, (self._pages.keys[0], self._pages.values[0]))
        except Exception as reason:
            raise UnavailableError(f"FlashInfer's kernels do not run here: {reason}") from reason


class FixedFlashInfer:
    """Decode batches of one size: the wrapper's buffers never move, so a captured run finds them again."""

    def __init__(self, attention: FlashInferAttention, wrapper: Any) -> None:
        self._attention = attention
        self._wrapper = wrapper

    def plan(self, contexts: Ints32, tables: Ints32) -> None:
        self._attention.plan_decode(self._wrapper, contexts, tables)

    def attend(
        self,
        layer: int,
        qkv: torch.Tensor,
        batch: DeviceBatch,
        out: torch.Tensor,
        *,
        last_only: bool = False,
    ) -> None:
        self._attention.run(self._wrapper, layer, qkv, batch, out)
