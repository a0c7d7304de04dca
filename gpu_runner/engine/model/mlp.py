"""The feed-forward half of a layer: SwiGLU, dense or as a mixture of experts."""

from typing import Protocol

import torch

from gpu_runner.engine.config import Experts
from gpu_runner.engine.model.elementwise import Elementwise
from gpu_runner.engine.model.parts import Linear, Workspace


class Mlp(Protocol):
    """Adds its output to the residual stream."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of its parameters."""

    def add_to(self, hidden: torch.Tensor, normed: torch.Tensor, workspace: Workspace) -> None:
        """Add the output for ``normed`` ``[T, hidden]`` to ``hidden`` in place."""


class DenseMlp:
    """``down(silu(gate(x)) * up(x))`` with gate and up fused into one product."""

    def __init__(self, gate_up: Linear, down: Linear, width: int, elementwise: Elementwise) -> None:
        self._elementwise = elementwise
        self._gate_up = gate_up
        self._down = down
        self._width = width

    @property
    def weight_bytes(self) -> int:
        return self._gate_up.weight_bytes + self._down.weight_bytes

    def add_to(self, hidden: torch.Tensor, normed: torch.Tensor, workspace: Workspace) -> None:
        self._down.add_to(hidden, self._inner(normed, workspace))

    def __call__(self, values: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        """The output by itself."""
        return self._down(self._inner(values, workspace))

    def _inner(self, values: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        both = self._gate_up(values, workspace.take("gate_up", values.shape[0], 2 * self._width))
        return self._elementwise.gated(both, workspace.take("inner", values.shape[0], self._width))


class ExpertMlp:
    """Each token goes to its ``active`` best experts, weighted by the softmax of the router (in fp32)."""

    def __init__(self, router: Linear, experts: list[DenseMlp], shape: Experts) -> None:
        self._router = router
        self._experts = experts
        self._shape = shape

    @property
    def weight_bytes(self) -> int:
        return self._router.weight_bytes + sum(expert.weight_bytes for expert in self._experts)

    def add_to(self, hidden: torch.Tensor, normed: torch.Tensor, workspace: Workspace) -> None:
        shares = torch.softmax(self._router(normed).float(), dim=-1)
        gates, chosen = torch.topk(shares, self._shape.active, dim=-1)
        if self._shape.normalise:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        gates = gates.to(hidden.dtype)
        for index in torch.unique(chosen).tolist():
            tokens, rank = torch.where(chosen == index)
            output = self._experts[index](normed.index_select(0, tokens), workspace)
            hidden.index_add_(0, tokens, output * gates[tokens, rank, None])
