"""transformers' continuous batching on a batch of prompts; runs in an interpreter with transformers, never in ours.

One JSON object a line comes in, one goes out. Operations: ``open`` (load a model), ``serve`` (a batch of prompts).
OMP_NUM_THREADS says how many threads it may use, each serving how many it does. Written for transformers 5.19, which
finds no memory for its batches on a CPU unless psutil is installed.
"""

import json
import os
import sys
import time
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
ANSWERS = os.fdopen(os.dup(1), "w")  # what transformers itself prints must not reach the answers
os.dup2(2, 1)

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig


def serve(model: Any, asked: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Serve all of ``requests`` at once; CPU and wall time, and tokens."""
    block, longest = asked["block_size"], max(len(row["prompt"]) + row["output"] for row in requests)
    batching = ContinuousBatchingConfig(
        page_size=block, num_blocks=len(requests) * -(-longest // block), max_batch_tokens=asked["token_budget"]
    )
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)  # type: ignore[no-untyped-call]
    manager = model.init_continuous_batching(generation_config=greedy, continuous_batching_config=batching)
    for index, row in enumerate(requests):
        manager.add_request(row["prompt"], request_id=str(index), max_new_tokens=row["output"])
    cpu, wall = time.process_time(), time.perf_counter()
    manager.start()
    done, tokens = 0, 0
    while done < len(requests) and (manager.is_running() or not done):
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            done, tokens = done + 1, tokens + len(result.generated_tokens)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    manager.stop(block=True)
    return {"cpu_s": cpu, "wall_s": wall, "output_tokens": tokens, "host_us": None}


def main() -> None:
    """Answer operations until standard input ends."""
    model, opened = None, dict[str, Any]()
    _say({"version": transformers.__version__})
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["op"] == "open":
            opened = asked
            dtype = getattr(torch, asked["dtype"])
            model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=dtype, attn_implementation="sdpa")
            _say({})
        elif model is not None:
            torch.set_num_threads(asked["threads"])
            _say(serve(model, opened, asked["requests"]))


def _say(answer: dict[str, Any]) -> None:
    ANSWERS.write(json.dumps(answer) + "\n")
    ANSWERS.flush()


if __name__ == "__main__":
    main()
