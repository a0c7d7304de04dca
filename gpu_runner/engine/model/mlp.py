"""The feed-forward half of a layer: SwiGLU, dense or as a mixture of experts."""

from typing import Protocol

import torch
from torch.nn.functional import grouped_mm

from gpu_runner.engine.config import Experts
from gpu_runner.engine.model.elementwise import Elementwise
from gpu_runner.engine.model.parts import Gate, Linear, Workspace
from gpu_runner.engine.model.tiled import TiledGate, TiledLinear


class Mlp(Protocol):
    """Adds its output to the residual stream."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of its parameters."""

    @property
    def capturable(self) -> bool:
        """Whether it asks the device for nothing, so that a step through it can be captured."""

    def add_to(self, hidden: torch.Tensor, normed: torch.Tensor, workspace: Workspace) -> None:
        """Add the output for ``normed`` ``[T, hidden]`` to ``hidden`` in place."""


class DenseMlp:
    """``down(silu(gate(x)) * up(x))``."""

    capturable = True

    def __init__(self, gate: Gate, down: Linear) -> None:
        self._gate = gate
        self._down = down

    @property
    def weight_bytes(self) -> int:
        return self._gate.weight_bytes + self._down.weight_bytes

    @property
    def can_put_off(self) -> bool:
        """Whether it consists of kernels that may be called `together` with others."""
        return isinstance(self._gate, TiledGate) and isinstance(self._down, TiledLinear)

    def add_to(self, hidden: torch.Tensor, normed: torch.Tensor, workspace: Workspace) -> None:
        self._down.add_to(hidden, self._gate(normed, workspace))

    def __call__(self, values: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        """The output by itself."""
        return self._down(self._gate(values, workspace))


class ExpertMlp:
    """A mixture of experts one after the other: the host reads who was chosen, and so no device can capture it."""

    capturable = False

    def __init__(self, router: Linear, experts: list[DenseMlp], shape: Experts) -> None:
        self._router = router
        self._experts = experts
        self._shape = shape

    @property
    def weight_bytes(self) -> int:
        return self._router.weight_bytes + sum(expert.weight_bytes for expert in self._experts)

    def add_to(self, hidden: torch.Tensor, normed: torch.Tensor, workspace: Workspace) -> None:
        gates, chosen = route(self._router(normed), self._shape)
        gates = gates.to(hidden.dtype)
        for index in torch.unique(chosen).tolist():
            tokens, rank = torch.where(chosen == index)
            output = self._experts[index](normed.index_select(0, tokens), workspace)
            hidden.index_add_(0, tokens, output * gates[tokens, rank, None])


class GroupedExpertMlp:
    """A mixture of experts as two grouped products: tokens lie in order of their experts, whose ends are on the device.

    Its shapes depend on the number of tokens alone, whoever is chosen, and the host reads nothing. ``gate_up`` is
    ``[experts, 2 * width, hidden]``, ``down`` ``[experts, hidden, width]``.
    """

    capturable = True

    def __init__(
        self, router: Linear, gate_up: torch.Tensor, down: torch.Tensor, shape: Experts, elementwise: Elementwise
    ) -> None:
        self._router = router
        self._gate_up, self._down = gate_up, down
        self._shape = shape
        self._elementwise = elementwise
        self._numbers = torch.arange(shape.count, device=gate_up.device)

    @property
    def weight_bytes(self) -> int:
        return self._router.weight_bytes + self._gate_up.nbytes + self._down.nbytes

    def add_to(self, hidden: torch.Tensor, normed: torch.Tensor, workspace: Workspace) -> None:
        gates, chosen = route(self._router(normed), self._shape)
        active, flat = self._shape.active, chosen.flatten()
        order = torch.argsort(flat, stable=True)
        ends = (flat[:, None] == self._numbers).sum(0).cumsum(0, dtype=torch.int32)
        rows = normed.index_select(0, order // active)
        both = grouped_mm(rows, self._gate_up.transpose(1, 2), offs=ends)
        inner = self._elementwise.gated(both, workspace.take("inner", rows.shape[0], self._shape.width))
        outputs = grouped_mm(inner, self._down.transpose(1, 2), offs=ends)
        # Back to the order of tokens before they are added up, so that the sum never depends on who was faster.
        placed = torch.empty_like(outputs).index_copy_(0, order, outputs).view(*chosen.shape, -1)
        hidden.add_((placed * gates.to(hidden.dtype)[..., None]).sum(1))


def route(scores: torch.Tensor, shape: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token the weights (fp32) and numbers of its ``active`` best experts, ``[T, active]`` each.

    Weights are the softmax of the router's ``scores`` in fp32, over all experts or, normalised, over the chosen ones.
    """
    gates, chosen = torch.topk(torch.softmax(scores.float(), dim=-1), shape.active, dim=-1)
    return gates / gates.sum(dim=-1, keepdim=True) if shape.normalise else gates, chosen


def groups_experts(hidden: int, width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the device has grouped products that read the ends of groups by themselves.

    PyTorch has them in bf16 from compute capability 9.0 on, for rows of whole 16 bytes; elsewhere `grouped_mm` brings
    the ends to the host.
    """
    if device.type != "cuda" or dtype is not torch.bfloat16 or hidden % 8 or width % 8:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)
