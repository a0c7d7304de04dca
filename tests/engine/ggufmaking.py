"""Small GGUF files out of Hugging Face folders, as llama.cpp's converter lays them out."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

Array = npt.NDArray[Any]
Quant = gguf.GGMLQuantizationType

_ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_EXPERTS = {
    "gate_proj": "ffn_gate_exps",
    "w1": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "w3": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w2": "ffn_down_exps",
}


class Made:
    """What goes into a file; a test may change ``keys`` (without the architecture) and ``tensors`` before `write`."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.architecture = _ARCHITECTURES[self.config["model_type"]]
        self.keys: dict[str, Any] = self._keys()
        self.tensors: dict[str, Array] = self._tensors(folder)
        self.quant: Callable[[str, Array], Quant] = lambda _name, _values: Quant.F32

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.keys.items():
            add: dict[type, Any] = {
                int: writer.add_uint32,
                float: writer.add_float32,
                str: writer.add_string,
                list: writer.add_array,
            }
            add[type(value)](key if key.startswith("split.") else f"{self.architecture}.{key}", value)
        writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
        for name, values in self.tensors.items():
            kind = self.quant(name, values)
            raw = values.astype(np.int32) if kind == Quant.I32 else gguf.quants.quantize(values, kind)
            writer.add_tensor(name, raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _keys(self) -> dict[str, Any]:
        config = self.config
        rope = config.get("rope_parameters") or {}
        keys = {
            "block_count": config["num_hidden_layers"],
            "context_length": config["max_position_embeddings"],
            "embedding_length": config["hidden_size"],
            "feed_forward_length": config["intermediate_size"],
            "attention.head_count": config["num_attention_heads"],
            "attention.head_count_kv": config["num_key_value_heads"],
            "attention.key_length": config["head_dim"],
            "attention.value_length": config["head_dim"],
            "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            "rope.dimension_count": config["head_dim"],
            "rope.freq_base": rope["rope_theta"],
        }
        if rope["rope_type"] in ("linear", "yarn"):
            keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
        if rope["rope_type"] == "yarn":
            keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        count = config.get("num_local_experts", config.get("num_experts"))
        if count:
            keys |= {"expert_count": count, "expert_used_count": config["num_experts_per_tok"]}
        if "moe_intermediate_size" in config:
            keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
        return keys

    def _tensors(self, folder: Path) -> dict[str, Array]:
        found: dict[str, Array] = {}
        experts: dict[str, dict[int, Array]] = {}
        for name, values in load_file(folder / "model.safetensors").items():
            stem, _, suffix = name.rpartition(".")
            block, _, part = stem.removeprefix("model.layers.").partition(".") if "layers" in stem else ("", "", stem)
            prefix = f"blk.{block}." if block else ""
            if ".experts." in part:
                _, _, number, matrix = part.rsplit(".", 3)
                experts.setdefault(f"{prefix}{_EXPERTS[matrix]}.{suffix}", {})[int(number)] = values
                continue
            if self.architecture == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                values = neighbours(values, self.config["head_dim"])
            found[f"{prefix}{_NAMES[part]}.{suffix}"] = values
        for name, parts in experts.items():
            found[name] = np.stack([parts[number] for number in sorted(parts)])
        if (self.config.get("rope_parameters") or {}).get("rope_type") == "llama3":
            found["rope_freqs.weight"] = self._llama3_divisors()
        return found

    def _llama3_divisors(self) -> Array:
        """By Llama 3.1's rule: high frequencies stay, low ones are divided by the factor, between them smoothly."""
        rope, size = self.config["rope_parameters"], self.config["head_dim"]
        low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        divisors = []
        for place in range(0, size, 2):
            wave = 2 * math.pi * rope["rope_theta"] ** (place / size)
            smooth = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            between = 1 / ((1 - smooth) / rope["factor"] + smooth)
            divisors.append(1.0 if wave < high else rope["factor"] if wave > low else between)
        return np.array(divisors, np.float32)


def neighbours(values: Array, size: int) -> Array:
    """Rows (or a bias) with the pairs of each head, ``size`` rows, side by side: 0, half, 1, half + 1 and so on."""
    mixed = np.empty_like(values)
    for head in range(0, len(values), size):
        mixed[head : head + size : 2] = values[head : head + size // 2]
        mixed[head + 1 : head + size : 2] = values[head + size // 2 : head + size]
    return mixed
