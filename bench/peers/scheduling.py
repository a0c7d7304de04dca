"""What a step costs vLLM's own scheduler, measured as `bench.core` measures ours."""

from collections.abc import Mapping
from typing import Any

from bench.peers.process import VLLM, Peer, PeerFailedError, PeerMissingError

SETTINGS = {
    "token_budget": 65_536,
    "chunked": True,
    "long_prefill_cap": 0,
    "by_priority": False,
    "watermark": 0.0,
    "model_length": 8_192,
    "kv_blocks": 100_000,
    "block_size": 16,
    "prefix_cache": False,
    "ahead": False,
}
STEPS = 30


def beside(ours: Mapping[str, float], cases: Mapping[str, tuple[int, int]]) -> dict[str, Any] | str:
    """Microseconds of CPU per step by name of figure, each with how many times cheaper ours is; or why there are none.

    ``cases`` maps figures to (running, queued).
    """
    figures: dict[str, Any] = {}
    try:
        with Peer("vllm_scheduler.py", VLLM) as peer:
            for name, (running, queued) in cases.items():
                settings = {**SETTINGS, "size": running}
                cost = peer.ask("cost", settings=settings, running=running, queued=queued, steps=STEPS)["us_per_step"]
                figures[name] = round(cost, 1)
                figures[f"{name}_ratio_x"] = round(cost / ours[name], 1)
    except (PeerMissingError, PeerFailedError) as error:
        return str(error)
    return figures
