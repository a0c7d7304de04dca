"""Row-wise operations of the forward pass: in PyTorch, or fused in C where that is available."""

import ctypes
from typing import Protocol

import torch
from torch.nn.functional import rms_norm, silu

from gpu_runner.engine.native.calls import Kernel
from gpu_runner.engine.native.compiled import UnavailableError, library

_FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16"}


class _Norm(ctypes.Structure):
    """``struct norm`` of native/elementwise.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("values", "weight", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "width", "threads")),
        ("epsilon", ctypes.c_float),
    ]


class Elementwise(Protocol):
    """What the decoder needs beside products and attention."""

    def norm(
        self, values: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """RMS norm over the last dimension, times ``weight``; ``out``, of the values' shape, may be used for it."""

    def gated(self, both: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` for ``both`` ``[rows, gate | up]``, into ``out``; ``both`` may be overwritten."""


class TorchElementwise:
    """Every device and number format."""

    def norm(
        self, values: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        return rms_norm(values, weight.shape, weight, epsilon)

    def gated(self, both: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        width = both.shape[1] // 2
        return torch.mul(silu(both[:, :width], inplace=True), both[:, width:], out=out)


class NativeElementwise(TorchElementwise):
    """One pass over memory each, for rows on the CPU; rows of odd width go the way of PyTorch."""

    def __init__(self, dtype: torch.dtype, threads: int) -> None:
        """`UnavailableError` says why there are no compiled kernels for ``dtype`` here."""
        name = _FORMATS.get(dtype)
        if name is None:
            raise UnavailableError(f"no kernel for {dtype}")
        loaded = library()
        self.lanes: int = loaded.lanes()
        self._threads = threads
        self._norm, self._gated = Kernel(f"rms_norm_{name}"), getattr(loaded, f"silu_mul_{name}")
        self._call = _Norm(threads=threads)
        self._gated.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_long, ctypes.c_long, ctypes.c_int]
        self._gated.restype = None

    def norm(
        self, values: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        width = weight.shape[0]
        if width % self.lanes or not values.is_contiguous():
            return super().norm(values, weight, epsilon)
        if out is None:
            out = torch.empty_like(values)
        call = self._call
        call.values, call.weight, call.out = values.data_ptr(), weight.data_ptr(), out.data_ptr()
        call.rows, call.width, call.epsilon = values.numel() // width, width, epsilon
        self._norm(call, values, out)
        return out

    def gated(self, both: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        rows, width = out.shape
        if width % self.lanes:
            return super().gated(both, out)
        self._gated(both.data_ptr(), out.data_ptr(), rows, width, self._threads)
        return out


def build_elementwise(dtype: torch.dtype, device: torch.device, threads: int) -> Elementwise:
    """The fastest that works for this format on this device."""
    if device.type == "cpu":
        try:
            return NativeElementwise(dtype, threads)
        except UnavailableError:
            pass
    return TorchElementwise()


def puts_off(elementwise: Elementwise, width: int) -> bool:
    """Whether norms of rows of ``width`` are kernels that may be called `together` with others."""
    return isinstance(elementwise, NativeElementwise) and width % elementwise.lanes == 0
