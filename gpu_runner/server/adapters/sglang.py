"""SGLang: told by its server information, which holds every argument it was started with."""

from typing import Any

from gpu_runner.server.adapters.asking import Asking
from gpu_runner.server.adapters.known import Abilities, Found

ABILITIES = Abilities(
    token_ids=True, ignore_eos=True, counts_per_chunk=True, answer_ids=False, priorities=True, reset_path="/flush_cache"
)
_ARGUMENTS = {
    "batch.token_budget": "chunked_prefill_size",
    "batch.size": "max_running_requests",
    "batch.queue_limit": "max_queued_requests",
    "cache.block_size": "page_size",
}
_ORDERS = {"fcfs": "arrival"}
_KEPT = (
    "disaggregation_mode",
    "enable_mixed_chunk",
    "schedule_policy",
    "schedule_conservativeness",
    "mem_fraction_static",
    "tp_size",
    "dp_size",
)


async def read(asking: Asking, model: str) -> Found | None:
    """SGLang as found, or None when it is another server."""
    info = await asking.json("/server_info") or await asking.json("/get_server_info")
    page = await asking.metrics()
    known = page is not None and any(name.startswith("sglang:") for name in page.names())
    if not isinstance(info, dict) or not (known or "disable_radix_cache" in info):
        return None
    notes = () if known else ("SGLang exports no metrics; start it with --enable-metrics",)
    return Found(
        "sglang", str(info.get("version", "")), model, ABILITIES, settings_of(info),
        {name: info[name] for name in _KEPT if name in info}, notes,
    )  # fmt: skip


def settings_of(info: dict[str, Any]) -> dict[str, Any]:
    """Settings under a policy's names, from SGLang's arguments."""
    found: dict[str, Any] = {setting: info[name] for setting, name in _ARGUMENTS.items() if info.get(name) is not None}
    if "disable_radix_cache" in info:
        found["cache.prefix"] = "none" if info["disable_radix_cache"] else "hash"
    if info.get("chunked_prefill_size") == -1:
        found["batch.chunked_prefill"] = False
        found.pop("batch.token_budget")
    tokens, page = info.get("max_total_num_tokens"), info.get("page_size") or 1
    if isinstance(tokens, int):
        found["cache.blocks"] = tokens // page
    policy = info.get("schedule_policy")
    if info.get("enable_priority_scheduling"):
        found["order.by"] = "priority"
    elif policy is not None:
        found["order.by"] = _ORDERS.get(str(policy), str(policy))
    return found
