"""Linear layers by PyTorch, and the buffers they write to."""

import math
from typing import Protocol

import torch

from gpu_runner.engine.model.elementwise import Elementwise
from gpu_runner.engine.native import memory

_USUAL_ROWS = 32  # what the packed layout is chosen for


class Workspace:
    """Named buffers that are grown, never freed: fresh large temporaries cost page faults at every step.

    Views that were taken before are found, not made again: while weights stream through the caches, all that PyTorch
    does to make one comes from memory, and takes as long as the arithmetic of a small operation.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}
        self._views: dict[tuple[str, tuple[int, ...]], tuple[int, torch.Tensor]] = {}

    def take(self, name: str, rows: int, *shape: int) -> torch.Tensor:
        """The buffer ``name`` as ``[rows, *shape]``, with whatever it held before."""
        held, view = self._views.get((name, shape), (None, None))
        if view is None or held != rows:
            view = self._make(name, rows, shape)
            self._views[name, shape] = rows, view
        return view

    def _make(self, name: str, rows: int, shape: tuple[int, ...]) -> torch.Tensor:
        size = rows * math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = self._empty(size)
            self._views = {key: held for key, held in self._views.items() if key[0] != name}
        return buffer[:size].view(rows, *shape)

    def _empty(self, size: int) -> torch.Tensor:
        if self._device.type == "cpu":
            return memory.zeros((size,), self._dtype)
        return torch.empty(size, dtype=self._dtype, device=self._device)


class Linear(Protocol):
    """``x W^T + b`` with ``W`` ``[out, in]``."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of its parameters."""

    def __call__(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The product for ``values`` ``[rows, in]``; ``out`` ``[rows, out]`` may be used for it."""

    def add_to(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Add the product for ``values`` to ``target`` ``[rows, out]`` in place."""

    def widened(self, values: torch.Tensor) -> torch.Tensor:
        """The product for ``values`` in fp32, not rounded to a narrower format where its sums were not."""


class Gate(Protocol):
    """``silu(gate(x)) * up(x)``, the first half of a SwiGLU layer."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of its parameters."""

    def __call__(self, values: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        """For ``values`` ``[rows, in]`` the product ``[rows, width]``, which may lie in ``workspace``."""


class PlainLinear:
    """The weight as it comes, on every device."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._transposed = weight.t()
        self._bias = bias
        self.weight_bytes = _bytes(weight, bias)

    def __call__(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if self._bias is None:
            return torch.mm(values, self._transposed, out=out)
        return torch.addmm(self._bias, values, self._transposed, out=out)

    def add_to(self, target: torch.Tensor, values: torch.Tensor) -> None:
        target.addmm_(values, self._transposed)
        if self._bias is not None:
            target.add_(self._bias)

    def widened(self, values: torch.Tensor) -> torch.Tensor:
        return self(values).float()


class PackedLinear:
    """The weight in oneDNN's own layout, arranged once: else every product would arrange it anew, which for few rows
    takes longer than the product.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _USUAL_ROWS)
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._bias = bias
        self.weight_bytes = _bytes(weight, bias)

    def __call__(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        product: torch.Tensor = self._product(values, self._packed, self._bias, "none", [], "")
        return product

    def add_to(self, target: torch.Tensor, values: torch.Tensor) -> None:
        target.add_(self(values))

    def widened(self, values: torch.Tensor) -> torch.Tensor:
        return self(values).float()


class TwoStepGate:
    """Gate and up in one product, then what becomes of both."""

    def __init__(self, gate_up: Linear, width: int, elementwise: Elementwise) -> None:
        """``gate_up`` has ``2 * width`` outputs, the gate's first."""
        self._gate_up = gate_up
        self._width = width
        self._elementwise = elementwise

    @property
    def weight_bytes(self) -> int:
        return self._gate_up.weight_bytes

    def __call__(self, values: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        both = self._gate_up(values, workspace.take("gate_up", values.shape[0], 2 * self._width))
        return self._elementwise.gated(both, workspace.take("inner", values.shape[0], self._width))


def _bytes(weight: torch.Tensor, bias: torch.Tensor | None) -> int:
    return weight.nbytes + (0 if bias is None else bias.nbytes)
