"""Which linear layers this machine has, the fastest first."""

import torch

from gpu_runner.engine.model.elementwise import Elementwise
from gpu_runner.engine.model.parts import Gate, Linear, PackedLinear, PlainLinear, TwoStepGate
from gpu_runner.engine.model.tiled import TiledGate, TiledLinear
from gpu_runner.engine.native.compiled import UnavailableError

_PACKED_FP32_FROM = 1 << 20  # weights from which oneDNN's layout pays in fp32


def build_linear(weight: torch.Tensor, bias: torch.Tensor | None = None, *, threads: int = 1) -> Linear:
    """The fastest for this weight on its device."""
    try:
        return TiledLinear(weight, bias, threads)
    except UnavailableError:
        pass
    if weight.device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        large = weight.dtype is torch.float32 and weight.numel() >= _PACKED_FP32_FROM
        if weight.dtype is torch.bfloat16 or large:
            return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def build_gate(gate_up: torch.Tensor, bias: torch.Tensor | None, elementwise: Elementwise, *, threads: int = 1) -> Gate:
    """The fastest for ``gate_up`` ``[2 * width, inputs]``, the gate's rows first."""
    try:
        return TiledGate(gate_up, bias, threads)
    except UnavailableError:
        return TwoStepGate(build_linear(gate_up, bias, threads=threads), gate_up.shape[0] // 2, elementwise)
