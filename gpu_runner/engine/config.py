"""The shape of a decoder: built-in shapes by name, or read from a Hugging Face ``config.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler_core.types.errors import InputError, Problem

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: base and, by ``kind`` (default, linear, llama3, yarn), the scaling parameters.

    ``divisors``, where there are any, divide the frequencies first: one for each pair of a head.
    """

    theta: float = 10_000.0
    kind: str = "default"
    factors: Mapping[str, float] = field(default_factory=dict)
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts: ``active`` of ``count`` experts per token, each ``width`` wide.

    ``normalise`` rescales the chosen gates to sum to one. ``dense_layers`` keep an ordinary MLP.
    """

    count: int
    active: int
    width: int
    normalise: bool
    dense_layers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the forward pass depends on except the weights."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    model_length: int
    norm_eps: float = 1e-5
    rope: Rope = field(default_factory=Rope)
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: Experts | None = None


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, **rest: Any) -> ModelConfig:
    return ModelConfig(
        family="llama",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        **rest,
    )


SHAPES: dict[str, ModelConfig] = {
    "demo-s": _llama(6, 288, 9, 9, 768, vocab_size=4096, model_length=4096),
    "shape-m": _llama(12, 768, 12, 4, 2048, vocab_size=32_000, model_length=4096, tied=True),
    "shape-l": ModelConfig(
        family="qwen2",
        layers=24,
        hidden=896,
        heads=14,
        kv_heads=2,
        head_dim=64,
        intermediate=4864,
        vocab_size=32_000,
        model_length=4096,
        norm_eps=1e-6,
        rope=Rope(theta=1_000_000.0),
        tied=True,
        qkv_bias=True,
    ),
    "tiny": _llama(2, 64, 4, 2, 128, vocab_size=512, model_length=1024),
}


def from_hugging_face(data: Mapping[str, Any], *, where: str = "config.json") -> ModelConfig:
    """The config behind a Hugging Face ``config.json``; `InputError` lists every field that is not supported."""
    return _Reader(data, where).config()


class _Reader:
    """Reads one ``config.json``, collecting problems until the end."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = data
        self._where = where
        self._problems: list[Problem] = []

    def config(self) -> ModelConfig:
        family = str(self._data.get("model_type"))
        if family not in FAMILIES:
            self._refuse("model_type", f"{family!r} is not supported; supported: {', '.join(FAMILIES)}")
            raise InputError(self._problems)
        self._check_unsupported()
        heads = self._positive("num_attention_heads")
        hidden = self._positive("hidden_size")
        kv_heads = self._positive("num_key_value_heads", default=heads)
        head_dim = self._positive("head_dim", default=hidden // max(heads, 1))
        if heads % max(kv_heads, 1):
            self._refuse("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
        if head_dim % 2:
            self._refuse("head_dim", f"{head_dim} is odd; rotary embedding needs an even head size")
        bias = bool(self._data.get("attention_bias", family == "qwen2"))
        config = ModelConfig(
            family=family,
            layers=self._positive("num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=self._positive("intermediate_size"),
            vocab_size=self._positive("vocab_size"),
            model_length=self._model_length(),
            norm_eps=float(self._data.get("rms_norm_eps", 1e-6)),
            rope=self._rope(),
            tied=bool(self._data.get("tie_word_embeddings", False)),
            qkv_bias=bias or family == "qwen2",
            output_bias=bias and family != "qwen2",
            mlp_bias=bool(self._data.get("mlp_bias", False)),
            qk_norm=family in ("qwen3", "qwen3_moe"),
            experts=self._experts(family),
        )
        if self._problems:
            raise InputError(self._problems)
        return config

    def _refuse(self, name: str, message: str) -> None:
        self._problems.append(Problem(f"{self._where}: {name}", message))

    def _positive(self, name: str, default: int | None = None) -> int:
        value = self._data.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._refuse(name, f"expected a positive whole number, got {value!r}")
            return 1
        return value

    def _check_unsupported(self) -> None:
        act = self._data.get("hidden_act", "silu")
        if act not in ("silu", "swish"):
            self._refuse("hidden_act", f"{act!r} is not supported; supported: silu")
        if self._data.get("quantization_config"):
            self._refuse("quantization_config", "quantised weights are not supported; give fp32, bf16 or fp16 weights")
        if self._data.get("partial_rotary_factor", 1.0) not in (1, 1.0, None):
            self._refuse("partial_rotary_factor", "only full rotation (1.0) is supported")

    def _model_length(self) -> int:
        """Positions the model is exact for: inside its sliding window, windowed and full attention are the same."""
        length = self._positive("max_position_embeddings")
        window = self._data.get("sliding_window")
        if window and self._data.get("use_sliding_window", self._data.get("model_type") in ("mistral", "mixtral")):
            return min(length, int(window))
        return length

    def _rope(self) -> Rope:
        scaling = self._data.get("rope_parameters") or self._data.get("rope_scaling") or {}
        if not isinstance(scaling, Mapping):
            self._refuse("rope_scaling", f"expected an object, got {scaling!r}")
            return Rope()
        theta = float(scaling.get("rope_theta") or self._data.get("rope_theta") or 10_000.0)
        kind = str(scaling.get("rope_type", scaling.get("type", "default")))
        needed = _ROPE_KINDS.get(kind)
        if needed is None:
            self._refuse("rope_scaling.rope_type", f"{kind!r} is not supported; supported: {', '.join(_ROPE_KINDS)}")
            return Rope(theta)
        factors = {name: float(value) for name, value in scaling.items() if _is_number(value) and name != "rope_theta"}
        if kind == "yarn":
            factors.setdefault(
                "original_max_position_embeddings", float(self._data.get("max_position_embeddings", 0) or 0)
            )
        for name in needed:
            if name not in factors:
                self._refuse(f"rope_scaling.{name}", f"missing; rope type {kind!r} needs it")
        return Rope(theta, kind, factors)

    def _experts(self, family: str) -> Experts | None:
        if family == "mixtral":
            return Experts(
                count=self._positive("num_local_experts"),
                active=self._positive("num_experts_per_tok"),
                width=self._positive("intermediate_size"),
                normalise=True,
            )
        if family == "qwen3_moe":
            step = self._positive("decoder_sparse_step", default=1)
            layers = self._positive("num_hidden_layers")
            dense = set(self._data.get("mlp_only_layers") or [])
            dense |= {layer for layer in range(layers) if (layer + 1) % step}
            return Experts(
                count=self._positive("num_experts" if "num_experts" in self._data else "num_local_experts"),
                active=self._positive("num_experts_per_tok"),
                width=self._positive("moe_intermediate_size"),
                normalise=bool(self._data.get("norm_topk_prob", False)),
                dense_layers=frozenset(dense),
            )
        return None


_ROPE_KINDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
