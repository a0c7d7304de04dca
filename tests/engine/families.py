"""Small models of every supported family, as `transformers` configs; the names say what is special about each."""

from typing import Any

from transformers import (
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_TIED = {**_SMALL, "tie_word_embeddings": True}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}

FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_SMALL),
    "llama-tied-mha": LlamaConfig(**{**_TIED, "num_key_value_heads": 4}),
    "llama-mqa-bias": LlamaConfig(**{**_SMALL, "num_key_value_heads": 1}, attention_bias=True, mlp_bias=True),
    "llama-rope-linear": LlamaConfig(
        **_SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    ),
    "llama-rope-llama3": LlamaConfig(**_SMALL, rope_parameters=_LLAMA3),
    "llama-rope-yarn": LlamaConfig(**_SMALL, rope_parameters=_YARN),
    "mistral": MistralConfig(**_SMALL, sliding_window=None),
    "qwen2": Qwen2Config(**_SMALL),
    "qwen3": Qwen3Config(**_SMALL),
    "mixtral": MixtralConfig(**_SMALL, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": Qwen3MoeConfig(
        **{**_SMALL, "num_hidden_layers": 3},
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        norm_topk_prob=True,
        mlp_only_layers=[1],
    ),
    "mistral-tied": MistralConfig(**_TIED, sliding_window=None),
    "qwen2-tied": Qwen2Config(**_TIED),
    "qwen3-tied": Qwen3Config(**_TIED),
    "mixtral-tied": MixtralConfig(**_TIED, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe-tied": Qwen3MoeConfig(
        **_TIED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True
    ),
}
