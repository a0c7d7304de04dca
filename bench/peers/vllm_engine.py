"""vLLM's engine on a local model folder, in one process and one thread; runs in vLLM's interpreter, never in ours.

One JSON object a line comes in, one goes out. Operations: ``open`` (load a model) and ``serve`` (requests of given
lengths at once, greedy, without an end token: CPU seconds and output tokens). Only the standard library and vLLM may be
imported here. Written for vLLM 0.32.0 on a CPU.
"""

import json
import os
import random
import sys
import time
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_KVCACHE_SPACE="2",
    VLLM_CPU_NUM_OF_RESERVED_CPU="0", VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1",
)  # fmt: skip
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", str(min(os.sched_getaffinity(0))))
ANSWERS = os.fdopen(os.dup(1), "w")  # what vLLM itself prints must not reach the answers
os.dup2(2, 1)

import vllm
from vllm import LLM, SamplingParams


def opened(model: str, dtype: str, size: int, budget: int) -> LLM:
    """The engine with prefix cache off, as the figures of engines are compared."""
    return LLM(
        model=model, skip_tokenizer_init=True, dtype=dtype, max_model_len=1024, max_num_seqs=size,
        max_num_batched_tokens=budget, enforce_eager=True, enable_prefix_caching=False, block_size=32,
    )  # fmt: skip


def serve(engine: LLM, lengths: list[tuple[int, int]], vocabulary: int) -> dict[str, float]:
    """Serve requests of (prompt, output) tokens at once; their prompts are random."""
    choices = random.Random(0)
    prompts = [{"prompt_token_ids": [choices.randrange(vocabulary) for _ in range(prompt)]} for prompt, _ in lengths]
    sampling = [
        SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False) for _, output in lengths
    ]
    cpu, wall = time.process_time(), time.perf_counter()
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"output_tokens": sum(len(each.outputs[0].token_ids) for each in outputs), "cpu_s": cpu, "wall_s": wall}


def main() -> None:
    """Answer until the input ends."""
    engine: Any = None
    print(json.dumps({"vllm": vllm.__version__}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        op = asked.pop("op")
        if op == "open":
            engine = opened(**asked)
            answer: dict[str, Any] = {}
        else:
            answer = serve(engine, **asked)
        print(json.dumps(answer), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
