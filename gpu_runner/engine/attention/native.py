"""The CPU backend in C: attention straight from the pages, with rotation and KV write fused in."""

import ctypes
import math

import torch

from gpu_runner.engine.attention.base import DeviceBatch, PoolShape
from gpu_runner.engine.native import memory
from gpu_runner.engine.native.calls import Kernel
from gpu_runner.engine.native.compiled import UnavailableError, has_amx, library

_AMX_DIMS = 32
"""Dimensions of a head that one tile product takes."""
_FORMATS = {
    (torch.float32, torch.float32): "f32_f32",
    (torch.float32, torch.bfloat16): "f32_bf16",
    (torch.bfloat16, torch.bfloat16): "bf16_bf16",
}


class _Batch(ctypes.Structure):
    """``struct batch`` of native/paged.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "keys", "values", "out", "cos", "sin")),
        *((name, ctypes.c_void_p) for name in ("slots", "starts", "contexts", "tables")),
        *((name, ctypes.c_int64) for name in ("tokens", "rows", "table_width", "heads", "kv_heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("block_size", "last_only", "threads")),
        ("scale", ctypes.c_float),
    ]


class NativeAttention:
    """Pages as in native/paged.h: keys transposed in tiles, so one vector load yields one dimension of many positions.

    bf16 activations on a processor with Intel AMX have pages as in native/paged_amx.h, whose tile registers multiply
    them, where the head size is a multiple of 32 (``name`` is then ``native-amx``). Either way a row's result does not
    depend, in any bit, on what shares its batch or how it was cut into chunks.
    """

    def __init__(self, shape: PoolShape, arithmetic: torch.dtype, kv_dtype: torch.dtype, threads: int) -> None:
        """`UnavailableError` says why this backend cannot serve such a pool here."""
        pair = _FORMATS.get((arithmetic, kv_dtype))
        if pair is None:
            raise UnavailableError(f"no kernel for {arithmetic} activations with {kv_dtype} pages")
        loaded = library()
        lanes = loaded.lanes()
        for what, size in (("block size", shape.block_size), ("head size", shape.head_dim)):
            if size % lanes:
                raise UnavailableError(f"{what} {size} is no multiple of {lanes}")
        amx = pair == "bf16_bf16" and shape.head_dim % _AMX_DIMS == 0 and has_amx()
        self.name = "native-amx" if amx else "native"
        self._attend = Kernel("attend_amx" if amx else f"attend_{pair}")
        self._shape = shape
        page = (shape.layers, shape.blocks, shape.kv_heads, shape.block_size * shape.head_dim)
        self._keys = memory.zeros(page, kv_dtype)
        self._values = memory.zeros(page, kv_dtype)
        for pool in (self._keys, self._values):
            pool.zero_()  # so that every page exists before the first step: pages never written read as one zero page
        self._places = [(self._keys[i].data_ptr(), self._values[i].data_ptr()) for i in range(shape.layers)]
        self._batch: DeviceBatch | None = None
        self._call = _Batch(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
            threads=threads,
            scale=1 / math.sqrt(shape.head_dim),
        )

    @property
    def pool_bytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    @property
    def pages(self) -> list[torch.Tensor]:
        return [*self._keys.unbind(0), *self._values.unbind(0)]

    def attend(
        self, layer: int, qkv: torch.Tensor, batch: DeviceBatch, out: torch.Tensor, *, last_only: bool = False
    ) -> None:
        if batch is not self._batch:
            self._take_up(batch)
        call = self._call
        call.keys, call.values = self._places[layer]
        call.qkv, call.out, call.last_only = qkv.data_ptr(), out.data_ptr(), last_only
        self._attend(call, qkv, out)

    def _take_up(self, batch: DeviceBatch) -> None:
        """Note what is the same for every layer of a step."""
        call = self._call
        for name in ("cos", "sin", "slots", "starts", "contexts", "tables"):
            setattr(call, name, getattr(batch, name).data_ptr())
        call.tokens, call.rows = batch.slots.shape[0], batch.contexts.shape[0]
        call.table_width = batch.tables.shape[1]
        self._batch = batch
