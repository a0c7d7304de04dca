"""From the names of a server's metrics to the evidence's names, by server and version.

Where a name changed between versions, all of its names are listed, the newest first; the first one on the page counts.
Sources: the metric definitions of vLLM 0.19 to 0.33 and SGLang 0.5.23, and pages of running servers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_runner.server.observe.page import Page

Value = Callable[[Page], float | None]


@dataclass(frozen=True)
class MetricMap:
    """How one kind of server is read: levels as they are, totals as counters that only grow."""

    server: str
    levels: Mapping[str, Value]
    totals: Mapping[str, Value]


def _any(*names: str, factor: float = 1.0) -> Value:
    def value(page: Page) -> float | None:
        for name in names:
            found = page.total(name)
            if found is not None:
                return found * factor
        return None

    return value


def _vllm_blocks(page: Page) -> float | None:
    text = page.label("vllm:cache_config_info", "num_gpu_blocks")
    return float(text) if text is not None and text.isdigit() else None


def _vllm_share(page: Page) -> float | None:
    """Mean over engines: each has a pool of its own."""
    for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
        found = [value for _, value in page.samples.get(name, ())]
        if found:
            return sum(found) / len(found)
    return None


def _vllm_used(page: Page) -> float | None:
    blocks, share = _vllm_blocks(page), _vllm_share(page)
    return None if blocks is None or share is None else blocks * share


def _histogram(name: str, part: str, factor: float = 1.0) -> Value:
    return _any(f"{name}_{part}", factor=factor)


def _phases(prefix: Mapping[str, str], factor: float = 1.0) -> dict[str, Value]:
    """``X_s`` and ``X_n`` of each histogram of seconds."""
    found: dict[str, Value] = {}
    for short, name in prefix.items():
        found[f"{short}_s"] = _histogram(name, "sum", factor)
        found[f"{short}_n"] = _histogram(name, "count")
    return found


VLLM = MetricMap(
    server="vllm",
    levels={
        "waiting": _any("vllm:num_requests_waiting"),
        "running": _any("vllm:num_requests_running"),
        "kv_share": _vllm_share,
        "kv_blocks": _vllm_blocks,
        "kv_used": _vllm_used,
    },
    totals={
        "prompt_tokens": _any("vllm:prompt_tokens_total"),
        "output_tokens": _any("vllm:generation_tokens_total"),
        "cache_lookups": _any("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "cache_hits": _any("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "preemptions": _any("vllm:num_preemptions_total"),
        "finished": _any("vllm:request_success_total"),
        **_phases(
            {
                "queue": "vllm:request_queue_time_seconds",
                "prefill": "vllm:request_prefill_time_seconds",
                "decode": "vllm:request_decode_time_seconds",
                "ttft": "vllm:time_to_first_token_seconds",
                "transfer": "vllm:nixl_xfer_time_seconds",
            }
        ),
        "transfer_bytes": _any("vllm:nixl_bytes_transferred_sum"),
        "transfers_failed": _any("vllm:nixl_num_failed_transfers_total"),
    },
)


def _sglang_blocks(name: str) -> Value:
    """SGLang counts KV in tokens; blocks are its pages, one token each where it does not say."""

    def value(page: Page) -> float | None:
        found = page.total(name)
        size = page.total("sglang:page_size")
        return None if found is None else found / (size or 1.0)

    return value


def _sglang_stage(stage: str, part: str) -> Value:
    return lambda page: page.total(f"sglang:per_stage_req_latency_seconds_{part}", stage=stage)


SGLANG = MetricMap(
    server="sglang",
    levels={
        "waiting": _any("sglang:num_queue_reqs"),
        "running": _any("sglang:num_running_reqs"),
        "paused": _any("sglang:num_paused_reqs"),
        "kv_share": _any("sglang:token_usage"),
        "kv_used": _sglang_blocks("sglang:kv_used_tokens"),
        "kv_cached": _sglang_blocks("sglang:kv_evictable_tokens"),
        "kv_blocks": _sglang_blocks("sglang:max_total_num_tokens"),
        "prefill_queue": _any("sglang:num_prefill_prealloc_queue_reqs", "sglang:num_prefill_bootstrap_queue_reqs"),
        "transfer_queue": _any("sglang:num_decode_transfer_queue_reqs"),
    },
    totals={
        "prompt_tokens": _any("sglang:prompt_tokens_total"),
        "output_tokens": _any("sglang:generation_tokens_total"),
        "cache_lookups": _any("sglang:prompt_tokens_total"),
        "cache_hits": _any("sglang:cached_tokens_total"),  # the hit-rate gauge is overwritten by every batch
        "preemptions": _any("sglang:num_retracted_requests_total", "sglang:num_retractions_count"),
        "finished": _any("sglang:num_requests_total"),
        **_phases({"queue": "sglang:queue_time_seconds", "ttft": "sglang:time_to_first_token_seconds"}),
        "prefill_s": _sglang_stage("prefill_forward", "sum"),
        "prefill_n": _sglang_stage("prefill_forward", "count"),
        "transfer_s": _histogram("sglang:kv_transfer_latency_ms", "sum", 1e-3),
        "transfer_n": _histogram("sglang:kv_transfer_latency_ms", "count"),
        "transfer_bytes": _any("sglang:kv_transfer_total_mb_sum", factor=2.0**20),
        "transfers_failed": _any("sglang:num_transfer_failed_reqs_total"),
    },
)


def _llama_blocks_share(page: Page) -> float | None:
    return page.total("llamacpp:kv_cache_usage_ratio")


LLAMA_CPP = MetricMap(
    server="llama.cpp",
    levels={
        "waiting": _any("llamacpp:requests_deferred"),
        "running": _any("llamacpp:requests_processing"),
        "kv_share": _llama_blocks_share,
    },
    totals={
        "prompt_tokens": _any("llamacpp:prompt_tokens_total"),
        "output_tokens": _any("llamacpp:tokens_predicted_total"),
    },
)


def _mean(name: str, factor: float = 1.0) -> Value:
    def value(page: Page) -> float | None:
        found = [value for _, value in page.samples.get(name, ())]
        return sum(found) / len(found) * factor if found else None

    return value


_MIB = 2.0**20
DCGM = MetricMap(
    server="dcgm",
    levels={
        "device_busy_share": _mean("DCGM_FI_DEV_GPU_UTIL", 1e-2),
        "device_memory_bytes": _any("DCGM_FI_DEV_FB_USED", factor=_MIB),
        "device_power_w": _any("DCGM_FI_DEV_POWER_USAGE"),
        "device_clock_hz": _mean("DCGM_FI_DEV_SM_CLOCK", 1e6),
    },
    totals={
        "device_energy_j": _any(
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total",  # as a counter reads, which the page calls it
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            factor=1e-3,
        )
    },
)

_PREFIXES = {"DCGM_FI_": DCGM, "vllm:": VLLM, "sglang:": SGLANG, "llamacpp:": LLAMA_CPP}


def map_of(page: Page) -> MetricMap | None:
    """The map whose names the page has; None for a page of no known server."""
    for name in page.names():
        for prefix, found in _PREFIXES.items():
            if name.startswith(prefix):
                return found
    return None


def read_levels(found: MetricMap, page: Page) -> dict[str, float]:
    """Levels that the page exports."""
    return {name: value for name, of in found.levels.items() if (value := of(page)) is not None}


def read_totals(found: MetricMap, page: Page) -> dict[str, float]:
    """Totals that the page exports, as the server counts them."""
    return {name: value for name, of in found.totals.items() if (value := of(page)) is not None}
