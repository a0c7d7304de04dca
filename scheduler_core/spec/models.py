"""Well-known models by the shapes that their makers publish: enough to count operations and bytes of a step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of one layer. Grouped-query: ``heads`` query heads share ``kv_heads``, each of ``head_dim``.

    Latent (MLA, arXiv 2405.04434): keys and values of all heads are kept as one vector of ``kv_rank`` and a rotary key
    of ``rope_dim``; ``head_dim`` is then that of the part without position, and of the values.
    """

    heads: int
    kv_heads: int
    head_dim: int
    kv_rank: int = 0
    rope_dim: int = 0
    query_rank: int = 0

    def parameters(self, hidden: int) -> int:
        """Weights of the projections."""
        if not self.kv_rank:
            return 2 * hidden * self.head_dim * (self.heads + self.kv_heads)
        query = self.query_rank * (hidden + self.heads * (self.head_dim + self.rope_dim))
        latent = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank * self.heads * 2 * self.head_dim
        return query + latent + hidden * self.heads * self.head_dim

    @property
    def kv_values(self) -> int:
        """Numbers that a layer keeps of one token."""
        return self.kv_rank + self.rope_dim if self.kv_rank else 2 * self.kv_heads * self.head_dim

    @property
    def prefill_flops(self) -> int:
        """Operations of one (query, key) pair while a prompt is computed, all heads: scores and weighted values."""
        return 2 * self.heads * (2 * self.head_dim + self.rope_dim)

    @property
    def decode_flops(self) -> int:
        """Operations of one query and one kept token, all heads; latent attention works on the latent vectors."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim) if self.kv_rank else self.prefill_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts of a layer: ``used`` of ``count`` per token, each ``width`` wide; ``shared`` ones always."""

    count: int
    used: int
    width: int
    shared: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder's shape. ``width`` is that of its dense feed-forward layers (gate, up and down)."""

    name: str
    layers: int
    hidden: int
    width: int
    vocab: int
    attention: Attention
    model_length: int
    experts: Experts | None = None
    tied: bool = False
    weight_bits: int = 16
    source: str

    @property
    def head_parameters(self) -> int:
        """Weights of the output head."""
        return self.vocab * self.hidden

    @property
    def dense_parameters(self) -> int:
        """Weights that every token uses, without embedding and output head."""
        own = self.layers * self.attention.parameters(self.hidden)
        if self.experts is None:
            return own + self.layers * 3 * self.hidden * self.width
        moe = self.layers - self.experts.dense_layers
        own += self.experts.dense_layers * 3 * self.hidden * self.width
        shared = 3 * self.hidden * self.experts.width * self.experts.shared
        return own + moe * (shared + self.hidden * self.experts.count)

    @property
    def expert_parameters(self) -> int:
        """Weights of all routed experts."""
        if self.experts is None:
            return 0
        each = 3 * self.hidden * self.experts.width * self.experts.count
        return (self.layers - self.experts.dense_layers) * each

    @property
    def parameters(self) -> int:
        """All weights."""
        tables = self.head_parameters * (1 if self.tied else 2)
        return self.dense_parameters + self.expert_parameters + tables

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses, without embedding and output head."""
        if self.experts is None:
            return self.dense_parameters
        return self.dense_parameters + self.expert_parameters * self.experts.used // self.experts.count

    def touched_share(self, tokens: int) -> float:
        """Share of the routed experts that ``tokens`` independent tokens use, expected under even routing."""
        if self.experts is None or not tokens:
            return 0.0
        return float(1 - (1 - self.experts.used / self.experts.count) ** tokens)


def _dense(name: str, shape: tuple[int, int, int, int], attention: Attention, length: int, maker: str) -> Model:
    layers, hidden, width, vocab = shape
    source = f"config.json of {maker}"
    return Model(
        name=name, layers=layers, hidden=hidden, width=width, vocab=vocab, attention=attention, model_length=length,
        source=source,
    )  # fmt: skip


def _moe(
    name: str, shape: tuple[int, int, int], attention: Attention, experts: Experts, length: int, maker: str
) -> Model:
    layers, hidden, vocab = shape
    return Model(
        name=name, layers=layers, hidden=hidden, width=experts.width, vocab=vocab, attention=attention,
        model_length=length, experts=experts, source=f"config.json of {maker}",
    )  # fmt: skip


def _heads(heads: int, kv_heads: int) -> Attention:
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=128)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        _dense("llama-3.1-8b", (32, 4096, 14_336, 128_256), _heads(32, 8), 131_072, "meta-llama/Llama-3.1-8B"),
        _dense("llama-3.1-70b", (80, 8192, 28_672, 128_256), _heads(64, 8), 131_072, "meta-llama/Llama-3.1-70B"),
        _dense("llama-3.1-405b", (126, 16_384, 53_248, 128_256), _heads(128, 8), 131_072, "meta-llama/Llama-3.1-405B"),
        _dense("qwen2.5-7b", (28, 3584, 18_944, 152_064), _heads(28, 4), 32_768, "Qwen/Qwen2.5-7B-Instruct"),
        _dense("qwen2.5-32b", (64, 5120, 27_648, 152_064), _heads(40, 8), 32_768, "Qwen/Qwen2.5-32B-Instruct"),
        _dense("qwen2.5-72b", (80, 8192, 29_568, 152_064), _heads(64, 8), 32_768, "Qwen/Qwen2.5-72B-Instruct"),
        _dense("qwen3-8b", (36, 4096, 12_288, 151_936), _heads(32, 8), 40_960, "Qwen/Qwen3-8B"),
        _dense("qwen3-32b", (64, 5120, 25_600, 151_936), _heads(64, 8), 40_960, "Qwen/Qwen3-32B"),
        _dense("mistral-7b", (32, 4096, 14_336, 32_768), _heads(32, 8), 32_768, "mistralai/Mistral-7B-v0.3"),
        _moe("mixtral-8x7b", (32, 4096, 32_000), _heads(32, 8), Experts(count=8, used=2, width=14_336), 32_768,
             "mistralai/Mixtral-8x7B-v0.1"),
        _moe("mixtral-8x22b", (56, 6144, 32_768), _heads(48, 8), Experts(count=8, used=2, width=16_384), 65_536,
             "mistralai/Mixtral-8x22B-v0.1"),
        _moe("qwen3-30b-a3b", (48, 2048, 151_936), _heads(32, 4), Experts(count=128, used=8, width=768), 40_960,
             "Qwen/Qwen3-30B-A3B"),
        _moe("qwen3-235b-a22b", (94, 4096, 151_936), _heads(64, 4), Experts(count=128, used=8, width=1536), 40_960,
             "Qwen/Qwen3-235B-A22B"),
        Model(
            name="deepseek-v3", layers=61, hidden=7168, width=18_432, vocab=129_280, model_length=163_840,
            attention=Attention(heads=128, kv_heads=128, head_dim=128, kv_rank=512, rope_dim=64, query_rank=1536),
            experts=Experts(count=256, used=8, width=2048, shared=1, dense_layers=3), weight_bits=8,
            source="config.json of deepseek-ai/DeepSeek-V3",
        ),
    )
}  # fmt: skip
