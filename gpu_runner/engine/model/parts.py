"""Linear layers and the buffers they write to."""

import torch


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


class Linear:
    """``x W^T + b`` with ``weight`` ``[out, in]``."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._transposed = weight.t()
        self._bias = bias

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Its parameters."""
        return [self._weight] if self._bias is None else [self._weight, self._bias]

    def __call__(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The product for ``values`` ``[rows, in]``, into ``out`` ``[rows, out]`` when given."""
        if self._bias is None:
            return torch.mm(values, self._transposed, out=out)
        return torch.addmm(self._bias, values, self._transposed, out=out)

    def add_to(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Add the product for ``values`` to ``target`` ``[rows, out]`` in place."""
        target.addmm_(values, self._transposed)
        if self._bias is not None:
            target.add_(self._bias)
