"""GGUF files: the config in their metadata, and where their tensors lie.

The `gguf` package reads them; it is needed for nothing else, so it is imported when the first file is opened. Reading
never imports torch. Keys are those of the GGUF specification (``docs/gguf.md`` of ggml).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_runner.engine.config import Experts, ModelConfig, Rope
from scheduler_core.types.errors import InputError, Problem

if TYPE_CHECKING:
    from gguf import ReaderTensor

SUFFIX = ".gguf"
FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
"""``general.architecture`` to family; a ``llama`` with experts is a Mixtral."""

_BLOCK = r"blk\.\d+\."
_USED = re.compile(
    rf"(token_embd|output_norm|output|rope_freqs|{_BLOCK}(attn_norm|ffn_norm|attn_q_norm|attn_k_norm|ffn_gate_inp|"
    rf"ffn_(gate|up|down)_exps))\.weight|{_BLOCK}(attn_(q|k|v|output)|ffn_(gate|up|down))\.(weight|bias)"
)


@dataclass(frozen=True, slots=True)
class Gguf:
    """A GGUF file: its scalar metadata by key, its tensors (quantised as they are, memory-mapped), its config."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, "ReaderTensor"]
    config: ModelConfig

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return str(self.metadata["general.architecture"])


def open_gguf(path: Path) -> Gguf:
    """The file at ``path``; `InputError` names the file and the key or tensor that is missing or not supported."""
    try:
        state = path.stat()
    except OSError as error:
        raise InputError([Problem("target.model", f"{path}: {error.strerror}")]) from None
    return _read(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1)
def _read(path: Path, _size: int, _changed_ns: int) -> Gguf:
    """Reading takes seconds where a tokenizer is large, and a run asks for config, figures and weights in turn."""
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError:
        message = f"{path} is a GGUF file; to read one, install the package gguf: pip install gguf"
        raise InputError([Problem("target.model", message)]) from None
    try:
        reader = GGUFReader(path)
        held = {k: field.contents() for k, field in reader.fields.items() if field.types[:1] != [GGUFValueType.ARRAY]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError([Problem(str(path), f"not readable as GGUF: {error}")]) from None
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    arrays = frozenset(reader.fields) - frozenset(held)
    return Gguf(path, held, tensors, _Config(path, held, tensors, arrays).read())


class _Config:
    """Reads a config out of metadata and tensor names, collecting problems until the end."""

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, "ReaderTensor"],
        arrays: frozenset[str],
    ) -> None:
        self._path = path
        self._metadata = metadata
        self._tensors = tensors
        self._arrays = arrays
        self._architecture = str(metadata.get("general.architecture"))
        self._problems: list[Problem] = []

    def read(self) -> ModelConfig:
        family = FAMILIES.get(self._architecture)
        if family is None:
            known = ", ".join(FAMILIES)
            self._refuse("general.architecture", f"{self._architecture!r} is not supported; supported: {known}")
            raise InputError(self._problems)
        self._check_unsupported()
        if family == "llama" and self._get("expert_count"):
            family = "mixtral"
        config = self._of_family(family)
        if self._problems:
            raise InputError(self._problems)
        return config

    def _of_family(self, family: str) -> ModelConfig:
        layers, heads, hidden = (
            self._positive(name) for name in ("block_count", "attention.head_count", "embedding_length")
        )
        kv_heads = self._positive("attention.head_count_kv", default=heads)
        if heads % kv_heads:
            self._refuse_key("attention.head_count_kv", f"{kv_heads} does not divide attention.head_count {heads}")
        head_dim = self._head_dim(hidden // heads)
        return ModelConfig(
            family=family,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=self._positive("feed_forward_length"),
            vocab_size=self._vocab_size(),
            model_length=self._model_length(),
            norm_eps=self._number("attention.layer_norm_rms_epsilon"),
            rope=self._rope(head_dim),
            tied="output.weight" not in self._tensors,
            qkv_bias="blk.0.attn_q.bias" in self._tensors,
            output_bias="blk.0.attn_output.bias" in self._tensors,
            mlp_bias="blk.0.ffn_down.bias" in self._tensors,
            qk_norm=family in ("qwen3", "qwen3_moe"),
            experts=self._experts(family),
        )

    def _check_unsupported(self) -> None:
        if int(self._metadata.get("split.count", 1)) > 1:
            self._refuse("split.count", "the file is one part of several; merge them with gguf-split --merge")
        others = sorted(name for name in self._tensors if not _USED.fullmatch(name))
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            self._refuse("tensors", f"{', '.join(others[:3])}{more}: no supported model has them")

    # --- metadata ----------------------------------------------------------------------------------------------

    def _refuse(self, name: str, message: str) -> None:
        self._problems.append(Problem(f"{self._path}: {name}", message))

    def _refuse_key(self, name: str, message: str) -> None:
        self._refuse(f"{self._architecture}.{name}", message)

    def _get(self, name: str) -> Any:
        if f"{self._architecture}.{name}" in self._arrays:
            self._refuse_key(name, "differs from layer to layer, which is not supported")
        return self._metadata.get(f"{self._architecture}.{name}")

    def _positive(self, name: str, default: int | None = None) -> int:
        value = self._get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._refuse_key(name, f"expected a positive whole number, got {value!r}")
            return 1
        return value

    def _number(self, name: str, default: float | None = None) -> float:
        value = self._get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            self._refuse_key(name, f"expected a positive number, got {value!r}")
            return 1.0
        return float(value)

    # --- parts of the config -----------------------------------------------------------------------------------

    def _head_dim(self, default: int) -> int:
        size = self._positive("attention.key_length", default=default)
        for name in ("attention.value_length", "rope.dimension_count"):
            other = self._positive(name, default=size)
            if other != size:
                self._refuse_key(name, f"{other} differs from the size of a key, {size}, which is not supported")
        if size % 2:
            self._refuse_key("attention.key_length", f"{size} is odd; rotary embedding needs an even head size")
        return size

    def _vocab_size(self) -> int:
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None:
            self._refuse("token_embd.weight", "the file has no such tensor")
            return 1
        return int(embedding.shape[-1])  # GGUF names the innermost dimension first

    def _model_length(self) -> int:
        """Positions the model is exact for: inside its sliding window, windowed and full attention are the same."""
        length = self._positive("context_length")
        return min(length, self._positive("attention.sliding_window", default=length))

    def _rope(self, head_dim: int) -> Rope:
        theta = self._number("rope.freq_base", default=10_000.0)
        kind = str(self._get("rope.scaling.type") or "none")
        if kind == "none":
            return Rope(theta, divisors=self._divisors(head_dim))
        if kind not in ("linear", "yarn"):
            self._refuse_key("rope.scaling.type", f"{kind!r} is not supported; supported: none, linear, yarn")
            return Rope(theta)
        factors = {"factor": self._number("rope.scaling.factor")}
        if kind == "yarn":
            factors["original_max_position_embeddings"] = self._number("rope.scaling.original_context_length")
            for name in ("beta_fast", "beta_slow"):
                if self._get(f"rope.scaling.yarn_{name}") is not None:
                    factors[name] = self._number(f"rope.scaling.yarn_{name}")
            for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor", "yarn_log_multiplier"):
                if self._get(f"rope.scaling.{name}") not in (None, 1.0):
                    self._refuse_key(f"rope.scaling.{name}", "is not supported")
        return Rope(theta, kind, factors, self._divisors(head_dim))

    def _divisors(self, head_dim: int) -> tuple[float, ...]:
        """Llama 3.1's scaling comes as a tensor: what each frequency is divided by."""
        tensor = self._tensors.get("rope_freqs.weight")
        if tensor is None:
            return ()
        values = tuple(float(value) for value in tensor.data.reshape(-1))
        if tensor.tensor_type.name != "F32" or len(values) != head_dim // 2:
            self._refuse("rope_freqs.weight", f"expected {head_dim // 2} numbers of type F32")
        return values

    def _experts(self, family: str) -> Experts | None:
        if family not in ("mixtral", "qwen3_moe"):
            return None
        width = "feed_forward_length" if family == "mixtral" else "expert_feed_forward_length"
        return Experts(
            count=self._positive("expert_count"),
            active=self._positive("expert_used_count"),
            width=self._positive(width),
            normalise=True,
        )
