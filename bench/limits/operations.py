"""Floating point operations and bytes that a step cannot do without.

A multiplication and an addition are two operations. Norms, activations, rotation and sampling are not counted: next to
products and attention they are few. After the last layer's keys and values only sampled tokens go on, so nothing that
the others would cost there counts, nor does the output layer for them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_runner.engine.config import ModelConfig
from gpu_runner.engine.describe import DTYPE_BYTES, ModelInfo
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.plan import Grant
from scheduler_core.types.shape import causal_pairs


@dataclass(frozen=True, slots=True)
class Work:
    """What is computed: tokens, those of them that are sampled, and the (query, key) pairs of both."""

    tokens: int = 0
    sampled: int = 0
    pairs: int = 0
    sampled_pairs: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.tokens + other.tokens,
            self.sampled + other.sampled,
            self.pairs + other.pairs,
            self.sampled_pairs + other.sampled_pairs,
        )


def of_grants(grants: Iterable[Grant]) -> Work:
    """What the grants of a step compute."""
    total = Work()
    for grant in grants:
        sampled = int(grant.samples)
        end = grant.start + grant.length
        total += Work(grant.length, sampled, causal_pairs(grant.start, grant.length), sampled * end)
    return total


def of_requests(requests: Iterable[PlannedRequest]) -> Work:
    """What serving ``requests`` takes, however it is cut into steps: the last token is never computed."""
    total = Work()
    for request in requests:
        prompt, output = request.prompt_tokens, request.output_tokens
        tokens = prompt + output - 1
        total += Work(tokens, output, causal_pairs(0, tokens), causal_pairs(prompt - 1, output))
    return total


def operations(config: ModelConfig, work: Work) -> int:
    """Floating point operations of ``work``: linear layers, attention, and the output layer of sampled tokens."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    into = config.hidden * (queries + 2 * keys)
    onward = [queries * config.hidden + _mlp(config, layer) for layer in range(config.layers)]
    products = work.tokens * (config.layers * into + sum(onward[:-1]))
    products += work.sampled * (onward[-1] + config.hidden * config.vocab_size)
    attended = (config.layers - 1) * work.pairs + work.sampled_pairs
    return 2 * products + 4 * queries * attended


def _mlp(config: ModelConfig, layer: int) -> int:
    """Weights of a layer's feed-forward half that a token meets."""
    experts = config.experts
    if experts is None or layer in experts.dense_layers:
        return 3 * config.hidden * config.intermediate
    return config.hidden * (experts.count + 3 * experts.active * experts.width)


def step_bytes(config: ModelConfig, info: ModelInfo, dtype: str) -> int:
    """Bytes of the weights that a decode step reads, each once, as ``dtype``.

    Of an embedding that is not the output layer too, only single rows are read.
    """
    embedding = 0 if config.tied else config.vocab_size * config.hidden * DTYPE_BYTES[dtype]
    return info.weight_bytes(dtype) - embedding
