"""The forward pass of the Llama family: Llama, Mistral, Qwen2, Qwen3, Mixtral and Qwen3-MoE."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from gpu_runner.engine.attention.base import AttentionKernel, DeviceBatch
from gpu_runner.engine.attention.native import NativeAttention
from gpu_runner.engine.config import Experts, ModelConfig
from gpu_runner.engine.model.choosing import build_gate, build_linear
from gpu_runner.engine.model.elementwise import Elementwise, build_elementwise, puts_off
from gpu_runner.engine.model.mlp import DenseMlp, ExpertMlp, GroupedExpertMlp, Mlp, groups_experts
from gpu_runner.engine.model.parts import Linear, PlainLinear, Workspace
from gpu_runner.engine.model.rope import rope_tables
from gpu_runner.engine.model.tiled import TiledLinear
from gpu_runner.engine.model.weights import Weights
from gpu_runner.engine.native.calls import together


@dataclass(slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    mlp: Mlp


def _puts_off(layer: _Layer) -> bool:
    """Whether all that a layer computes beside attention are kernels that may be called `together`."""
    linears = isinstance(layer.qkv, TiledLinear) and isinstance(layer.output, TiledLinear)
    return linears and layer.query_norm is None and isinstance(layer.mlp, DenseMlp) and layer.mlp.can_put_off


class Decoder:
    """Weights on one device, and the forward of one flat batch."""

    def __init__(
        self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device, threads: int = 1
    ) -> None:
        """Load every tensor as ``dtype``; `InputError` names a tensor that is missing or has the wrong shape."""
        self._elementwise = build_elementwise(dtype, device, threads)
        loader = _Loader(config, weights, dtype, device, self._elementwise, threads)
        self.config = config
        self.dtype = dtype
        self.device = device
        self._embedding = loader.tensor("model.embed_tokens.weight", (config.vocab_size, config.hidden))
        self._layers = [loader.layer(index) for index in range(config.layers)]
        self._norm = loader.tensor("model.norm.weight", (config.hidden,))
        head = self._embedding
        if not config.tied:
            head = loader.tensor("lm_head.weight", (config.vocab_size, config.hidden))
        self._head = build_linear(head, threads=threads)
        self._workspace = self.workspace()
        self.can_put_off = puts_off(self._elementwise, config.hidden) and all(map(_puts_off, self._layers))
        self._cos, self._sin = (
            table.to(device) for table in rope_tables(config.rope, config.head_dim, config.model_length)
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device; a packed output layer is there besides the embedding it is tied to."""
        shared = self.config.tied and isinstance(self._head, PlainLinear)
        return self._embedding.nbytes + self.step_bytes - (self._head.weight_bytes if shared else 0)

    @property
    def step_bytes(self) -> int:
        """Bytes of the weights that a step reads: all but the embedding, of which it reads single rows."""
        total = self._norm.nbytes + self._head.weight_bytes
        for layer in self._layers:
            norms = (layer.input_norm, layer.query_norm, layer.key_norm, layer.mlp_norm)
            total += sum(norm.nbytes for norm in norms if norm is not None)
            total += layer.qkv.weight_bytes + layer.output.weight_bytes + layer.mlp.weight_bytes
        return total

    @property
    def capturable(self) -> bool:
        """Whether a forward asks the device for nothing."""
        return all(layer.mlp.capturable for layer in self._layers)

    def workspace(self) -> Workspace:
        """Buffers for forwards that must not share those of others."""
        return Workspace(self.dtype, self.device)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of ``positions``, each ``[T, head_dim / 2]``."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def forward(
        self, batch: DeviceBatch, attention: AttentionKernel, workspace: Workspace | None = None
    ) -> torch.Tensor:
        """Logits of the sampled tokens, fp32 ``[sampled, vocab]``; writes the KV of every token.

        Temporaries lie in ``workspace``, by default in the decoder's own.
        """
        workspace = workspace or self._workspace
        hidden = workspace.take("hidden", batch.token_ids.shape[0], self.config.hidden)
        torch.index_select(self._embedding, 0, batch.token_ids, out=hidden)
        with together() if self.can_put_off and isinstance(attention, NativeAttention) else nullcontext():
            for index, layer in enumerate(self._layers[:-1]):
                self._onward(layer, hidden, self._attend(index, hidden, batch, attention, workspace), workspace)
            mixed = self._attend(len(self._layers) - 1, hidden, batch, attention, workspace)
        # Only sampled tokens go on: nothing after the last layer's KV depends on the others.
        mixed, hidden = mixed.index_select(0, batch.sampled), hidden.index_select(0, batch.sampled)
        self._onward(self._layers[-1], hidden, mixed, workspace)
        return self._head.widened(self._normed(hidden, self._norm, workspace))

    def _onward(self, layer: _Layer, hidden: torch.Tensor, mixed: torch.Tensor, workspace: Workspace) -> None:
        """What follows a layer's attention."""
        layer.output.add_to(hidden, mixed)
        layer.mlp.add_to(hidden, self._normed(hidden, layer.mlp_norm, workspace), workspace)

    def _attend(
        self, index: int, hidden: torch.Tensor, batch: DeviceBatch, attention: AttentionKernel, workspace: Workspace
    ) -> torch.Tensor:
        config, layer, tokens = self.config, self._layers[index], hidden.shape[0]
        width = (config.heads + 2 * config.kv_heads) * config.head_dim
        flat = layer.qkv(self._normed(hidden, layer.input_norm, workspace), workspace.take("qkv", tokens, width))
        qkv = flat.view(tokens, -1, config.head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = qkv[:, : config.heads], qkv[:, config.heads : config.heads + config.kv_heads]
            query.copy_(self._elementwise.norm(query, layer.query_norm, config.norm_eps))
            key.copy_(self._elementwise.norm(key, layer.key_norm, config.norm_eps))
        mixed = workspace.take("mixed", tokens, config.heads, config.head_dim)
        attention.attend(index, qkv, batch, mixed, last_only=index == config.layers - 1)
        return workspace.take("mixed", tokens, config.heads * config.head_dim)

    def _normed(self, values: torch.Tensor, weight: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        out = workspace.take("normed", values.shape[0], self.config.hidden)
        return self._elementwise.norm(values, weight, self.config.norm_eps, out)


class _Loader:
    """Asks a weight source for tensors by Hugging Face name and fuses what is computed together."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        elementwise: Elementwise,
        threads: int,
    ) -> None:
        self._elementwise = elementwise
        self._threads = threads
        self._config = config
        self._weights = weights
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._weights.get(name, shape).to(device=self._device, dtype=self._dtype)

    def layer(self, index: int) -> _Layer:
        config, base = self._config, f"model.layers.{index}"
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        attention = f"{base}.self_attn"
        parts = [(f"{attention}.{name}_proj", size) for name, size in (("q", queries), ("k", keys), ("v", keys))]
        return _Layer(
            input_norm=self.tensor(f"{base}.input_layernorm.weight", (config.hidden,)),
            qkv=self._fused(parts, config.hidden, bias=config.qkv_bias),
            query_norm=self._head_norm(f"{attention}.q_norm.weight"),
            key_norm=self._head_norm(f"{attention}.k_norm.weight"),
            output=self._fused([(f"{attention}.o_proj", config.hidden)], queries, bias=config.output_bias),
            mlp_norm=self.tensor(f"{base}.post_attention_layernorm.weight", (config.hidden,)),
            mlp=self._mlp(index),
        )

    def _head_norm(self, name: str) -> torch.Tensor | None:
        return self.tensor(name, (self._config.head_dim,)) if self._config.qk_norm else None

    def _mlp(self, index: int) -> Mlp:
        config, base = self._config, f"model.layers.{index}.mlp"
        experts = config.experts
        if experts is None or index in experts.dense_layers:
            return self._dense(base, ("gate_proj", "up_proj", "down_proj"), config.intermediate)
        names = ("gate_proj", "up_proj", "down_proj")
        if config.family == "mixtral":
            base, names = f"model.layers.{index}.block_sparse_moe", ("w1", "w3", "w2")
        router = self._fused([(f"{base}.gate", experts.count)], config.hidden, bias=False)
        bases = [f"{base}.experts.{expert}" for expert in range(experts.count)]
        if not config.mlp_bias and groups_experts(config.hidden, experts.width, self._dtype, self._device):
            return self._grouped(router, bases, names, experts)
        return ExpertMlp(router, [self._dense(place, names, experts.width) for place in bases], experts)

    def _grouped(self, router: Linear, bases: list[str], names: tuple[str, str, str], experts: Experts) -> Mlp:
        """All experts in two tensors, filled one by one so that no weight is there twice."""
        hidden, width = self._config.hidden, experts.width
        gate_up = torch.empty(experts.count, 2 * width, hidden, dtype=self._dtype, device=self._device)
        down = torch.empty(experts.count, hidden, width, dtype=self._dtype, device=self._device)
        gate, up, out = names
        for index, base in enumerate(bases):
            gate_up[index, :width] = self.tensor(f"{base}.{gate}.weight", (width, hidden))
            gate_up[index, width:] = self.tensor(f"{base}.{up}.weight", (width, hidden))
            down[index] = self.tensor(f"{base}.{out}.weight", (hidden, width))
        return GroupedExpertMlp(router, gate_up, down, experts, self._elementwise)

    def _dense(self, base: str, names: tuple[str, str, str], width: int) -> DenseMlp:
        gate, up, down = (f"{base}.{name}" for name in names)
        hidden, bias = self._config.hidden, self._config.mlp_bias
        both = self._joined([(gate, width), (up, width)], hidden, bias=bias)
        return DenseMlp(
            build_gate(*both, self._elementwise, threads=self._threads),
            self._fused([(down, hidden)], width, bias=bias),
        )

    def _fused(self, parts: list[tuple[str, int]], inputs: int, *, bias: bool) -> Linear:
        return build_linear(*self._joined(parts, inputs, bias=bias), threads=self._threads)

    def _joined(
        self, parts: list[tuple[str, int]], inputs: int, *, bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weights, and with ``bias`` biases, of layers that are computed together."""
        weight = torch.cat([self.tensor(f"{name}.weight", (size, inputs)) for name, size in parts])
        biases = torch.cat([self.tensor(f"{name}.bias", (size,)) for name, size in parts]) if bias else None
        return weight, biases
