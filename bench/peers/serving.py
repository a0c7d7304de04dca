"""Output tokens per CPU second of vLLM's engine on the weights, lengths and number format of ours."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from bench.peers.process import VLLM, Peer, PeerFailedError, PeerMissingError, interpreter
from gpu_runner.engine.config import ModelConfig, resolve
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.model.weights import SeededWeights, Shape

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


class _Kept:
    """A source of weights that keeps what it gave."""

    def __init__(self, source: SeededWeights) -> None:
        self._source = source
        self.tensors: dict[str, torch.Tensor] = {}

    def get(self, name: str, shape: Shape) -> torch.Tensor:
        self.tensors[name] = self._source.get(name, shape).contiguous()
        return self.tensors[name]


def write_model(model: str, folder: Path) -> None:
    """A built-in shape with its seeded weights as a Hugging Face folder, fp32."""
    config = resolve(model)
    kept = _Kept(SeededWeights(0, config.layers))
    Decoder(config, kept, torch.float32, torch.device("cpu"))
    save_file(kept.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_described(config)), encoding="utf-8")


def beside(
    model: str, dtype: str, lengths: list[tuple[int, int]], *, ours: float, size: int, budget: int
) -> dict[str, Any] | str:
    """vLLM's tokens per CPU second and how many times that ours is; or why there are none. One thread, eager."""
    try:
        interpreter(VLLM)
        with TemporaryDirectory(prefix="headway-peer-") as folder:
            write_model(model, Path(folder))
            with Peer("vllm_engine.py", VLLM) as peer:
                peer.ask("open", model=folder, dtype=dtype, size=size, budget=budget)
                vocabulary = resolve(model).vocab_size
                served = [peer.ask("serve", lengths=lengths, vocabulary=vocabulary) for _ in range(2)]
    except (PeerMissingError, PeerFailedError) as error:
        return str(error)
    rate = max(each["output_tokens"] / each["cpu_s"] for each in served)
    return {"vllm_tokens_per_cpu_s": round(rate, 1), "ratio_x": round(ours / rate, 2)}


def _described(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": [_CLASSES[config.family]],
        "model_type": config.family,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.model_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope.theta},
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
    }
