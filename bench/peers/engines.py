"""Other engines on the batch of `bench.engine`: the same seeded weights, prompts, lengths and number format.

Ours and a peer take turns in one run, so that what else the machine does hits both. A peer's program is
`bench/peers/NAME_engine.py`.
"""

import atexit
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from bench.peers.process import VLLM, Peer, PeerFailedError, PeerMissingError
from gpu_runner.engine.config import ModelConfig, resolve
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.model.weights import SeededWeights, Shape
from gpu_runner.engine.prompts import prompt_ids
from scheduler_core.types.arrival import PlannedRequest

ENGINES = {"vllm": VLLM, "transformers": "HEADWAY_TRANSFORMERS_PYTHON"}
"""Peer to the environment variable with the interpreter in which it is installed."""

Figures = dict[str, dict[str, float | str]]

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


class Run(NamedTuple):
    """One serving of the batch."""

    output_tokens: int
    cpu_s: float
    wall_s: float
    host_us: float | None = None

    @property
    def tokens_per_cpu_s(self) -> float:
        return self.output_tokens / self.cpu_s


@dataclass(frozen=True, slots=True)
class Batch:
    """What is served: requests that are all there from the start, by a built-in model with seeded weights."""

    model: str
    dtype: str
    requests: tuple[PlannedRequest, ...]
    token_budget: int
    block_size: int

    def rows(self) -> list[dict[str, Any]]:
        """Prompts and output lengths as peers are given them."""
        vocab = resolve(self.model).vocab_size
        return [
            {
                "prompt": prompt_ids(request, vocab_size=vocab, prefix_block_size=self.block_size).tolist(),
                "output": request.output_tokens,
            }
            for request in self.requests
        ]


def in_turns(
    name: str, batch: Batch, ours: Callable[[], Run], *, threads: int, repeats: int, eager: bool = True
) -> list[tuple[Run, Run]]:
    """Pairs of one serving by us and one by peer ``name``.

    Raises:
        PeerMissingError: it is not installed here.
        PeerFailedError: it ended, or served another number of tokens than asked for.
    """
    due, rows = sum(request.output_tokens for request in batch.requests), batch.rows()
    pairs = []
    with Peer(f"{name}_engine.py", ENGINES[name], {"OMP_NUM_THREADS": str(threads)}) as peer:
        peer.ask(
            "open",
            model=str(folder(batch.model)),
            dtype=batch.dtype,
            size=len(rows),
            token_budget=batch.token_budget,
            block_size=batch.block_size,
            eager=eager,
        )
        for _ in range(repeats):
            pairs.append((ours(), Run(**peer.ask("serve", requests=rows))))
            if pairs[-1][1].output_tokens != due:
                raise PeerFailedError(f"{name} served {pairs[-1][1].output_tokens} tokens, {due} were asked for")
    return pairs


def beside(batch: Batch, label: str, ours: Callable[[int], Callable[[], Run]], *, wide: bool, repeats: int) -> Figures:
    """Figures of each installed peer, with how many times faster ours is, or why there are none.

    ``ours(threads)`` gives what serves the batch here; figures end in ``label``. ``wide`` adds wall time on two threads
    as the median of paired ratios.
    """
    figures: Figures = {}
    for name in ENGINES:
        its = figures[name] = {}
        try:
            pairs = in_turns(name, batch, ours(1), threads=1, repeats=repeats)
            mine, other = (max(run.tokens_per_cpu_s for run in runs) for runs in zip(*pairs, strict=True))
            its[f"tokens_per_cpu_s_{label}"] = round(other, 1)
            its[f"tokens_per_cpu_s_{label}_ratio_x"] = round(mine / other, 2)
            host = [run.host_us for _, run in pairs if run.host_us is not None]
            if host:
                its[f"host_us_per_step_{len(batch.requests)}_{label}"] = round(min(host))
            if wide:
                pairs = in_turns(name, batch, ours(2), threads=2, repeats=max(3, repeats))
                ratio = statistics.median(other.wall_s / mine.wall_s for mine, other in pairs)
                its[f"wall_2_threads_{label}_ratio_x"] = round(ratio, 2)
        except (PeerMissingError, PeerFailedError) as error:
            its["missing"] = str(error)
    return figures


@cache
def folder(model: str) -> Path:
    """A Hugging Face folder with the seeded weights of a built-in shape, there until this process ends.

    Its tokenizer has a word for each token id, so that a server can write its answers as text.
    """
    config, path = resolve(model), Path(tempfile.mkdtemp(prefix="headway-weights-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    kept = _Kept(config)
    Decoder(config, kept, torch.float32, torch.device("cpu"))
    save_file(kept.tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(_hugging_face(config)))
    (path / "tokenizer.json").write_text(json.dumps(_words(config.vocab_size)))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "model_max_length": config.model_length}
    (path / "tokenizer_config.json").write_text(json.dumps(kind))
    return path


class _Kept:
    """Seeded weights that remembers what it was asked for."""

    def __init__(self, config: ModelConfig) -> None:
        self._source = SeededWeights(0, config.layers)
        self.tensors: dict[str, torch.Tensor] = {}

    def get(self, name: str, shape: Shape) -> torch.Tensor:
        self.tensors[name] = self._source.get(name, shape)
        return self.tensors[name]


def _words(count: int) -> dict[str, Any]:
    """A tokenizer file whose token ``n`` is the word ``wn``."""
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"w{number}": number for number in range(count)}, "unk_token": "w0"},
    }


def _hugging_face(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURES[config.family]],
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
        "bos_token_id": None,
        "eos_token_id": None,
    }
