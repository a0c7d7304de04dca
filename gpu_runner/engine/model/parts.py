"""Linear layers and the buffers they write to."""

from typing import Protocol

import torch

_PACKED_FP32_FROM = 1 << 20  # weights from which oneDNN's layout pays in fp32
_USUAL_ROWS = 32  # what the packed layout is chosen for


class Workspace:
    """Named buffers that are grown, never freed: fresh large temporaries cost page faults at every step."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, name: str, rows: int, width: int) -> torch.Tensor:
        """The buffer ``name`` as ``[rows, width]``, with whatever it held before."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < rows * width:
            buffer = torch.empty(rows * width, dtype=self._dtype, device=self._device)
            self._buffers[name] = buffer
        return buffer[: rows * width].view(rows, width)


class Linear(Protocol):
    """``x W^T + b`` with ``W`` ``[out, in]``."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of its parameters."""

    def __call__(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The product for ``values`` ``[rows, in]``; ``out`` ``[rows, out]`` may be used for it."""

    def add_to(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Add the product for ``values`` to ``target`` ``[rows, out]`` in place."""


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


def build_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The faster of both for this weight on its device."""
    if weight.device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        large = weight.dtype is torch.float32 and weight.numel() >= _PACKED_FP32_FROM
        if weight.dtype is torch.bfloat16 or large:
            return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def _bytes(weight: torch.Tensor, bias: torch.Tensor | None) -> int:
    return weight.nbytes + (0 if bias is None else bias.nbytes)
