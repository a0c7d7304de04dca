"""What a model needs of a pool, without building it."""

from dataclasses import dataclass

from gpu_runner.engine.config import ModelConfig
from gpu_runner.engine.references import resolve

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The figures of a model that scheduling depends on.

    ``parameters`` counts every weight once (a tied output layer adds none). ``model_length`` is the most positions
    one request may have.
    """

    model: str
    family: str
    model_length: int
    layers: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    parameters: int

    def bytes_per_token(self, dtype: str) -> int:
        """KV bytes of one position: keys and values of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES[dtype]

    def bytes_per_block(self, block_size: int, dtype: str) -> int:
        """KV bytes of one block of ``block_size`` positions."""
        return block_size * self.bytes_per_token(dtype)

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights."""
        return self.parameters * DTYPE_BYTES[dtype]


def describe(model: str) -> ModelInfo:
    """Figures of a model by its name; `InputError` when there is no such model or it is not supported."""
    config = resolve(model)
    return ModelInfo(
        model=model,
        family=config.family,
        model_length=config.model_length,
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        parameters=_parameters(config),
    )


def _parameters(config: ModelConfig) -> int:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    attention = config.hidden * (2 * queries + 2 * keys)
    attention += (queries + 2 * keys) * config.qkv_bias + config.hidden * config.output_bias
    attention += 2 * config.head_dim * config.qk_norm
    dense = 3 * config.hidden * config.intermediate + (2 * config.intermediate + config.hidden) * config.mlp_bias
    total = config.vocab_size * config.hidden * (1 if config.tied else 2) + config.hidden
    for layer in range(config.layers):
        total += attention + 2 * config.hidden
        experts = config.experts
        if experts is not None and layer not in experts.dense_layers:
            total += experts.count * (3 * config.hidden * experts.width + config.hidden)
        else:
            total += dense
    return total
