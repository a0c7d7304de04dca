"""vLLM: told by ``/version`` and its metric names; settings from ``/server_info`` in development mode, or metrics."""

from typing import Any

from gpu_runner.server.adapters.asking import Asking
from gpu_runner.server.adapters.known import Abilities, Found
from gpu_runner.server.observe.page import Page

ABILITIES = Abilities(
    token_ids=True, ignore_eos=True, counts_per_chunk=True, answer_ids=True, priorities=True, reset_path=""
)
RESET_PATH = "/reset_prefix_cache"
# Setting of a policy -> (section of vLLM's configuration, its name there).
_CONFIG = {
    "batch.token_budget": ("scheduler_config", "max_num_batched_tokens"),
    "batch.size": ("scheduler_config", "max_num_seqs"),
    "batch.chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "batch.long_prefill_cap": ("scheduler_config", "long_prefill_token_threshold"),
    "batch.queue_limit": ("scheduler_config", "max_num_queued_reqs"),
    "order.by": ("scheduler_config", "policy"),
    "cache.block_size": ("cache_config", "block_size"),
    "cache.blocks": ("cache_config", "num_gpu_blocks"),
    "cache.prefix": ("cache_config", "enable_prefix_caching"),
}
_ORDERS = {"fcfs": "arrival", "priority": "priority"}


async def read(asking: Asking, listed: list[dict[str, Any]], model: str) -> Found | None:
    """vLLM as found, or None when it is another server."""
    version = await asking.json("/version")
    owned = any(item.get("owned_by") == "vllm" for item in listed)
    page = await asking.metrics()
    known = page is not None and any(name.startswith("vllm:") for name in page.names())
    if not owned and not known:
        return None
    config = (await asking.json("/server_info?config_format=json") or {}).get("vllm_config")
    settings = settings_of(config) if isinstance(config, dict) else {}
    settings = {**_of_metrics(page), **settings} if page is not None else settings
    notes = []
    reset_path = RESET_PATH if config is not None else ""  # both belong to the development mode
    if config is None:
        notes.append(
            "vLLM hides its scheduler's settings and cache reset; start it with VLLM_SERVER_DEV_MODE=1 to have both"
        )
    abilities = Abilities(**{**ABILITIES.__dict__, "reset_path": reset_path})
    other = {item["id"]: item.get("max_model_len") for item in listed if item.get("id") == model}
    return Found(
        "vllm", str((version or {}).get("version", "")), model, abilities, settings,
        {"model_length": other.get(model)}, tuple(notes),
    )  # fmt: skip


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """Settings under a policy's names, from vLLM's own configuration."""
    found: dict[str, Any] = {}
    for setting, (section, name) in _CONFIG.items():
        part = config.get(section)
        if isinstance(part, dict) and name in part:
            found[setting] = _value(setting, part[name])
    return {name: value for name, value in found.items() if value is not None}


def _value(setting: str, value: Any) -> Any:
    if setting == "order.by":
        return _ORDERS.get(str(value), str(value))
    if setting == "cache.prefix":
        return "hash" if value in (True, "True") else "none"
    if setting == "batch.queue_limit":
        return value or 0
    return value


def _of_metrics(page: Page) -> dict[str, Any]:
    """What the cache's information metric says: always there, unlike the scheduler's settings."""
    found: dict[str, Any] = {}
    for setting, label in (("cache.block_size", "block_size"), ("cache.blocks", "num_gpu_blocks")):
        text = page.label("vllm:cache_config_info", label)
        if text is not None and text.isdigit():
            found[setting] = int(text)
    prefix = page.label("vllm:cache_config_info", "enable_prefix_caching")
    if prefix is not None:
        found["cache.prefix"] = _value("cache.prefix", prefix)
    return found
