"""vLLM's engine on a batch of prompts, inside one process; runs in vLLM's interpreter, never in ours.

One JSON object a line comes in, one goes out. Operations: ``open`` (load a model), ``serve`` (a batch of prompts).
OMP_NUM_THREADS says how many threads it may use, each serving how many it does. Written for vLLM 0.32.0 on CPUs.
"""

import json
import os
import sys
import time
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="2",
    VLLM_CPU_NUM_OF_RESERVED_CPU="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
)
ANSWERS = os.fdopen(os.dup(1), "w")  # what vLLM itself prints must not reach the answer
os.dup2(2, 1)

import torch
import vllm
from vllm import LLM, SamplingParams
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

set_threads = torch.set_num_threads  # and OpenMP's, which its kernels go by; vLLM's worker puts a stub in its place


class Steps:
    """Beginning and end of the model's work in each step, as (requests, tokens, begin, end), by wrapping the runner."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self._wrap("execute_model", self._planned)
        self._wrap("_model_forward", self._begun)
        self._wrap("_sample", self._ended)

    def _wrap(self, name: str, note: Any) -> None:
        original = getattr(GPUModelRunner, name)

        def wrapped(runner: Any, *args: Any, **kwargs: Any) -> Any:
            return note(original, runner, *args, **kwargs)

        setattr(GPUModelRunner, name, wrapped)

    def _planned(self, original: Any, runner: Any, planned: Any, *args: Any, **kwargs: Any) -> Any:
        self.rows.append([len(planned.num_scheduled_tokens), planned.total_num_scheduled_tokens, 0.0, 0.0])
        return original(runner, planned, *args, **kwargs)

    def _begun(self, original: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
        if self.rows:
            self.rows[-1][2] = time.perf_counter()
        return original(runner, *args, **kwargs)

    def _ended(self, original: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
        sampled = original(runner, *args, **kwargs)
        self.rows[-1][3] = time.perf_counter()
        return sampled

    def host_us(self, batch: int) -> float | None:
        """Lower quartile of the time between the device's work of two steps, the second of which decodes ``batch``."""
        gaps = [
            after[2] - before[3]
            for before, after in zip(self.rows, self.rows[1:], strict=False)
            if after[0] == after[1] == batch and before[3] and after[2]
        ]
        return sorted(gaps)[len(gaps) // 4] * 1e6 if gaps else None


def load(asked: dict[str, Any]) -> LLM:
    """The engine for a model folder, warm."""
    engine = LLM(
        model=asked["model"],
        skip_tokenizer_init=True,
        dtype=asked["dtype"],
        max_model_len=1024,
        max_num_seqs=asked["size"],
        max_num_batched_tokens=asked["token_budget"],
        enforce_eager=asked["eager"],
        enable_prefix_caching=False,
        block_size=asked["block_size"],
    )
    engine.generate([{"prompt_token_ids": [1] * 64}] * 4, _greedy(4), use_tqdm=False)
    return engine


def serve(engine: LLM, requests: list[dict[str, Any]], steps: Steps) -> dict[str, Any]:
    """Serve all of ``requests`` at once; CPU and wall time, tokens, and host time per step of the full batch."""
    prompts = [{"prompt_token_ids": row["prompt"]} for row in requests]
    limits = [_greedy(row["output"]) for row in requests]
    steps.rows.clear()
    cpu, wall = time.process_time(), time.perf_counter()
    served = engine.generate(prompts, limits, use_tqdm=False)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    tokens = sum(len(one.outputs[0].token_ids) for one in served)
    return {"cpu_s": cpu, "wall_s": wall, "output_tokens": tokens, "host_us": steps.host_us(len(requests))}


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)


def main() -> None:
    """Answer operations until standard input ends."""
    steps, engine = Steps(), None
    _say({"version": vllm.__version__})
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["op"] == "open":
            engine = load(asked)
            _say({})
        elif engine is not None:
            set_threads(asked["threads"])
            _say(serve(engine, asked["requests"], steps))


def _say(answer: dict[str, Any]) -> None:
    ANSWERS.write(json.dumps(answer) + "\n")
    ANSWERS.flush()


if __name__ == "__main__":
    main()
