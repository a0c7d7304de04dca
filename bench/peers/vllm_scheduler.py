"""The scheduler of an installed vLLM, driven without a model; runs in vLLM's interpreter, never in ours.

One JSON object a line comes in, one goes out. Operations: ``open`` (a new scheduler), ``add`` (requests), ``plan``
(schedule one step), ``answer`` (give the oldest step in flight its tokens), ``abort`` and ``cost`` (CPU time of steps).
Only the standard library and vLLM may be imported here. Written for vLLM 0.32.0.
"""

import json
import os
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_KVCACHE_SPACE="1")
ANSWERS = os.fdopen(os.dup(1), "w")  # what vLLM itself prints must not reach the answers
os.dup2(2, 1)

import torch
import vllm
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

STOP_TOKEN = 1
EMITTED = 1 << 40  # ids of emitted tokens lie above all prompt ids, a range for each request
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 1 << 20,
}


class Driven:
    """One scheduler, its steps in flight, and the order in which it preempted."""

    def __init__(self, settings: dict[str, Any]) -> None:
        config = _config(settings)
        spec = FullAttentionSpec(block_size=settings["block_size"], num_kv_heads=2, head_size=32, dtype=torch.float32)
        blocks = settings["kv_blocks"] + 1  # one is the null block
        config.cache_config.num_gpu_blocks = blocks
        build = AsyncScheduler if settings["ahead"] else Scheduler
        self.scheduler = build(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=settings["block_size"],
            log_stats=False,
        )
        caching = settings["prefix_cache"]
        self.hasher = get_request_block_hasher(settings["block_size"], sha256) if caching else None
        self.in_flight: deque[Any] = deque()
        self.preempted: list[int] = []
        self.ends: dict[int, int] = {}
        self.emitted: dict[int, int] = {}
        self._watch_preemptions()

    def _watch_preemptions(self) -> None:
        original = self.scheduler._preempt_request

        def preempt(request: Any, *args: Any, **kwargs: Any) -> None:
            self.preempted.append(int(request.request_id))
            original(request, *args, **kwargs)

        self.scheduler._preempt_request = preempt

    def add(self, row: dict[str, Any]) -> None:
        """Queue a request; it emits a stop token as its ``output``-th one."""
        self.ends[row["id"]], self.emitted[row["id"]] = row["output"], 0
        sampling = SamplingParams(
            temperature=0, max_tokens=row["limit"], ignore_eos=True, stop_token_ids=[STOP_TOKEN], detokenize=False
        )
        self.scheduler.add_request(
            Request(
                request_id=f"{row['id']:08d}",  # ties are decided by comparing these as texts
                prompt_token_ids=_prompt(row),
                sampling_params=sampling,
                pooling_params=None,
                arrival_time=row["arrival"],
                priority=row["priority"],
                block_hasher=self.hasher,
            )
        )

    def plan(self) -> dict[str, Any]:
        """Schedule a step: its grants in order, as ``[id, start, tokens, new blocks]``, and who was preempted."""
        self.preempted.clear()
        planned = self.scheduler.schedule()
        starts, blocks = _starts_and_blocks(planned)
        grants = [
            [int(name), starts[name], tokens, blocks[name]] for name, tokens in planned.num_scheduled_tokens.items()
        ]
        if grants:
            self.in_flight.append(planned)
        return {"grants": grants, "preempted": list(self.preempted)}

    def answer(self) -> dict[str, Any]:
        """Give the oldest step in flight its tokens: one for every request that has caught up with it."""
        planned = self.in_flight.popleft()
        names = list(planned.num_scheduled_tokens)
        starts, _ = _starts_and_blocks(planned)
        tokens = [self._token(name, starts[name] + planned.num_scheduled_tokens[name]) for name in names]
        answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
        )
        self.scheduler.update_from_output(planned, answer)
        return {}

    def _token(self, name: str, reached: int) -> list[int]:
        request, number = self.scheduler.requests.get(name), int(name)
        if request is None or reached < request.num_prompt_tokens + self.emitted[number]:
            return []
        self.emitted[number] += 1
        if self.emitted[number] >= self.ends[number]:
            return [STOP_TOKEN]
        return [EMITTED * (number + 1) + self.emitted[number]]

    def abort(self, number: int) -> dict[str, Any]:
        """End a request in whatever state it is."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(f"{number:08d}", RequestStatus.FINISHED_ABORTED)
        return {}


def _config(settings: dict[str, Any]) -> Any:
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(MODEL))
    length = settings["model_length"]
    scheduler = SchedulerConfig(
        max_num_seqs=settings["size"],
        max_num_batched_tokens=settings["token_budget"],
        max_model_len=length,
        is_encoder_decoder=False,
        enable_chunked_prefill=settings["chunked"],
        long_prefill_token_threshold=settings["long_prefill_cap"],
        policy="priority" if settings["by_priority"] else "fcfs",
        watermark=settings["watermark"],
        async_scheduling=settings["ahead"],
    )
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, max_model_len=length, dtype="float32", seed=0)
    cache = CacheConfig(block_size=settings["block_size"], enable_prefix_caching=settings["prefix_cache"])
    return VllmConfig(model_config=model, scheduler_config=scheduler, cache_config=cache)


def _prompt(row: dict[str, Any]) -> list[int]:
    """Token ids of a prompt: equal identities stand for equal tokens, private ones belong to the seed."""
    size = row["prefix_block_size"]
    ids = [((block + 1) << 12) + offset for block in row["prefix_blocks"] for offset in range(size)]
    ids = ids[: row["prompt"]]
    return ids + [((row["seed"] + 1) << 24) + position for position in range(len(ids), row["prompt"])]


def _starts_and_blocks(planned: Any) -> tuple[dict[str, int], dict[str, list[int]]]:
    starts, blocks = {}, {}
    for new in planned.scheduled_new_reqs:
        starts[new.req_id], blocks[new.req_id] = new.num_computed_tokens, list(new.block_ids[0])
    known = planned.scheduled_cached_reqs
    for name, start, groups in zip(known.req_ids, known.num_computed_tokens, known.new_block_ids, strict=True):
        starts[name], blocks[name] = start, list(groups[0]) if groups else []
    return starts, blocks


def cost(settings: dict[str, Any], *, running: int, queued: int, steps: int) -> dict[str, Any]:
    """CPU microseconds to plan and complete one step in which ``running`` requests decode, with ``queued`` waiting."""
    driven = Driven(settings)
    for index in range(running + queued):
        driven.add(
            {"id": index, "prompt": 32, "limit": 4_000, "output": 4_000, "priority": 0, "arrival": 0.0, "seed": index}
            | {"prefix_blocks": [], "prefix_block_size": 16}
        )
    scheduler = driven.scheduler

    def step() -> None:
        planned = scheduler.schedule()
        names = list(planned.num_scheduled_tokens)
        indexes = {name: index for index, name in enumerate(names)}
        answer = ModelRunnerOutput(names, indexes, sampled_token_ids=[[7]] * len(names))
        scheduler.update_from_output(planned, answer)

    for _ in range(5):
        step()
    began = time.process_time()
    for _ in range(steps):
        step()
    return {"us_per_step": (time.process_time() - began) / steps * 1e6}


def main() -> None:
    """Answer operations until standard input ends."""
    init_none_hash(sha256)
    driven: Driven | None = None
    _say({"version": vllm.__version__})
    for line in sys.stdin:
        asked = json.loads(line)
        operation = asked.pop("op")
        answer: dict[str, Any] = {}
        if operation == "open":
            driven = Driven(asked)
        elif operation == "cost":
            answer = cost(asked.pop("settings"), **asked)
        elif driven is not None and operation == "add":
            for row in asked["requests"]:
                driven.add(row)
        elif driven is not None:
            answer = getattr(driven, operation)(**asked)
        _say(answer)


def _say(answer: dict[str, Any]) -> None:
    ANSWERS.write(json.dumps(answer) + "\n")
    ANSWERS.flush()


if __name__ == "__main__":
    main()
