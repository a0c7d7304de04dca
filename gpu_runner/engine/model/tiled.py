"""Linear layers on the tile registers of Intel AMX, by native/matmul.c: bf16, and fp32 from three bf16 parts."""

import ctypes
from enum import IntEnum

import torch
from torch.nn.functional import pad

from gpu_runner.engine.model.compact import compacted
from gpu_runner.engine.model.parts import Workspace
from gpu_runner.engine.native import memory
from gpu_runner.engine.native.calls import Kernel
from gpu_runner.engine.native.compiled import UnavailableError, has_amx

_PANEL = 32
_STEP = 32
_FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16"}


class _Finish(IntEnum):
    """``enum finish`` of native/matmul.c."""

    WRITE = 0
    ADD = 1
    GATE = 2
    WIDEN = 3


class _Product(ctypes.Structure):
    """``struct product`` of native/matmul.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("values", "weight", "code", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "outputs", "width", "finish", "threads")),
    ]


class _Panels:
    """A weight packed once into the order in which tiles read it, and its product with rows.

    A row's product in bf16 does not depend, in any bit, on the rows beside it; in fp32 only on whether there are more
    than 14, which tiles multiply, or fewer, which vectors do.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, threads: int) -> None:
        """``weight`` ``[outputs, inputs]``; `UnavailableError` says why it cannot be multiplied so here."""
        name = _FORMATS.get(weight.dtype)
        if name is None or weight.device.type != "cpu":
            raise UnavailableError(f"no product on tiles for {weight.dtype} on {weight.device.type}")
        if weight.shape[1] % _STEP:
            raise UnavailableError(f"{weight.shape[1]} inputs are no multiple of {_STEP}")
        if not has_amx():
            raise UnavailableError("no AMX tiles here")
        self._multiply = Kernel(f"multiply_{name}")
        order = _in_order(_whole(weight))
        self._compact = compacted(order.contiguous()) if weight.dtype is torch.bfloat16 else None
        if self._compact is None:
            self._packed = memory.zeros(tuple(order.shape), order.dtype).copy_(order)
        else:
            self._packed = self._compact.packed
        self._bias = None if bias is None else _whole(bias.float()).contiguous()
        self._call = _Product(
            weight=self._packed.data_ptr(),
            code=None if self._compact is None else self._compact.code,
            bias=None if self._bias is None else self._bias.data_ptr(),
            inputs=weight.shape[1],
            outputs=-(-weight.shape[0] // _PANEL) * _PANEL,
            threads=threads,
        )
        held = self._packed if self._compact is None else self._compact
        self.weight_bytes = held.nbytes + (0 if bias is None else bias.nbytes)

    def multiply(self, values: torch.Tensor, out: torch.Tensor, finish: _Finish) -> torch.Tensor:
        """The product for ``values`` ``[rows, inputs]``, finished into ``out`` ``[rows, width]``, which is returned."""
        values = values.contiguous()
        call = self._call
        call.values, call.out, call.finish = values.data_ptr(), out.data_ptr(), finish
        call.rows, call.width = out.shape
        self._multiply(call, values, out)
        return out


class TiledLinear:
    """A linear layer whose weight lies in panels."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, threads: int) -> None:
        self._panels = _Panels(weight, bias, threads)
        self._outputs = weight.shape[0]

    @property
    def weight_bytes(self) -> int:
        return self._panels.weight_bytes

    def __call__(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is None:
            out = values.new_empty(values.shape[0], self._outputs)
        return self._panels.multiply(values, out, _Finish.WRITE)

    def add_to(self, target: torch.Tensor, values: torch.Tensor) -> None:
        self._panels.multiply(values, target, _Finish.ADD)

    def widened(self, values: torch.Tensor) -> torch.Tensor:
        out = values.new_empty(values.shape[0], self._outputs, dtype=torch.float32)
        return self._panels.multiply(values, out, _Finish.WIDEN)


class TiledGate:
    """``silu(gate(x)) * up(x)`` in one product: panels of the gate and of up take turns."""

    def __init__(self, gate_up: torch.Tensor, bias: torch.Tensor | None, threads: int) -> None:
        """``gate_up`` ``[2 * width, inputs]``, the gate first."""
        self._width = gate_up.shape[0] // 2
        if self._width % _PANEL:
            raise UnavailableError(f"a width of {self._width} is no multiple of {_PANEL}")
        self._panels = _Panels(_mixed(gate_up), None if bias is None else _mixed(bias), threads)

    @property
    def weight_bytes(self) -> int:
        return self._panels.weight_bytes

    def __call__(self, values: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        return self._panels.multiply(values, workspace.take("inner", values.shape[0], self._width), _Finish.GATE)


def _mixed(gate_up: torch.Tensor) -> torch.Tensor:
    """A panel of the gate, one of up, in turns."""
    return gate_up.view(2, -1, _PANEL, *gate_up.shape[1:]).transpose(0, 1).reshape(gate_up.shape)


def _whole(rows: torch.Tensor) -> torch.Tensor:
    """``rows`` with zeros behind them up to whole panels."""
    missing = -rows.shape[0] % _PANEL
    return pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


def _in_order(weight: torch.Tensor) -> torch.Tensor:
    """bf16: ``[panel][step][half][pair][output][2]``, a tile for each half; fp32: ``[panel][input][output]``."""
    outputs, inputs = weight.shape
    panels, steps = outputs // _PANEL, inputs // _STEP
    if weight.dtype is torch.float32:
        return weight.view(panels, _PANEL, inputs).transpose(1, 2)
    return weight.view(panels, 2, 16, steps, _STEP // 2, 2).permute(0, 3, 1, 4, 2, 5)
