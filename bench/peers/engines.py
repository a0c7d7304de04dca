"""Other engines on the batch of `bench.engine`: the same seeded weights, prompts, lengths and number format.

Ours and a peer take turns in one run, so that what else the machine does hits both. A peer's program is
`bench/peers/NAME_engine.py`.
"""

import atexit
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from bench.peers.process import VLLM, Peer, PeerFailedError, PeerMissingError
from gpu_runner.engine.config import ModelConfig
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.model.weights import SeededWeights, Shape
from gpu_runner.engine.prompts import prompt_ids
from gpu_runner.engine.references import resolve
from scheduler_core.types.arrival import PlannedRequest

ENGINES = {"vllm": VLLM, "transformers": "HEADWAY_TRANSFORMERS_PYTHON"}
"""Peer to the environment variable with the interpreter in which it is installed."""

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
    name: str, batch: Batch, ours: Callable[[int], Run], turns: Mapping[int, int], *, eager: bool = True
) -> dict[int, list[tuple[Run, Run]]]:
    """By number of threads, as many pairs as ``turns`` says of one serving by us and one by peer ``name``.

    Starting a peer takes longer than serving, so one process serves with any number of threads. The first serving of
    each number only warms up what takes it.

    Raises:
        PeerMissingError: it is not installed here.
        PeerFailedError: it ended, or served another number of tokens than asked for.
    """
    due, rows = sum(request.output_tokens for request in batch.requests), batch.rows()
    pairs: dict[int, list[tuple[Run, Run]]] = {}
    with Peer(f"{name}_engine.py", ENGINES[name], {"OMP_NUM_THREADS": str(max(turns))}) as peer:
        peer.ask(
            "open",
            model=str(folder(batch.model)),
            dtype=batch.dtype,
            size=len(rows),
            token_budget=batch.token_budget,
            block_size=batch.block_size,
            eager=eager,
        )
        warm = rows[: max(1, len(rows) // 8)]
        for threads, repeats in turns.items():
            peer.ask("serve", requests=warm, threads=threads)
            for _ in range(repeats):
                pair = ours(threads), Run(**peer.ask("serve", requests=rows, threads=threads))
                pairs.setdefault(threads, []).append(pair)
                if pair[1].output_tokens != due:
                    raise PeerFailedError(f"{name} served {pair[1].output_tokens} tokens, {due} were asked for")
    return pairs


def beside(
    name: str, batch: Batch, label: str, ours: Callable[[int], Run], turns: Mapping[int, int]
) -> dict[str, float | str]:
    """Figures of peer ``name``, with how many times faster ours is, or why there are none; names end in ``label``.

    ``ours(threads)`` serves the batch here, ``turns`` says how often for each number of threads. On one thread the best
    of each counts, by CPU time; on two the median of paired ratios of wall time.
    """
    its: dict[str, float | str] = {}
    try:
        pairs = in_turns(name, batch, ours, turns)
        mine, other = (max(run.tokens_per_cpu_s for run in runs) for runs in zip(*pairs[1], strict=True))
        its[f"tokens_per_cpu_s_{label}"] = round(other, 1)
        its[f"tokens_per_cpu_s_{label}_ratio_x"] = round(mine / other, 2)
        host = [run.host_us for _, run in pairs[1] if run.host_us is not None]
        if host:
            its[f"host_us_per_step_{len(batch.requests)}_{label}"] = round(min(host))
        if 2 in pairs:
            ratio = statistics.median(other.wall_s / mine.wall_s for mine, other in pairs[2])
            its[f"wall_2_threads_{label}_ratio_x"] = round(ratio, 2)
    except (PeerMissingError, PeerFailedError) as error:
        its["missing"] = str(error)
    return its


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
