"""Logs of gateways as requests."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from scheduler_core.workload.logs.hashing import text_blocks
from scheduler_core.workload.logs.lines import objects
from scheduler_core.workload.logs.rows import BLOCK_SIZE, LoggedRequest, Row, UnusableRowError, count, instant


def litellm(path: Path) -> Iterator[Row]:
    """LiteLLM's standard logging payload, one JSON object a request."""
    for place, data in objects(path):
        yield Row(place, partial(_payload, data))


def _payload(data: Any, salt: bytes) -> LoggedRequest:
    if not isinstance(data, dict) or "startTime" not in data:
        raise UnusableRowError("rows without startTime")
    prompt = count(data, "prompt_tokens")
    failed = data.get("status", "success") != "success"
    metadata = data.get("metadata") or {}
    messages = data.get("messages")
    parts = messages if isinstance(messages, list) else [{"content": messages or ""}]
    text = "".join(str(item.get("content", "")) for item in parts)
    return LoggedRequest(
        instant(data, "startTime"),
        prompt,
        0 if failed else count(data, "completion_tokens"),
        tenant=str(metadata.get("user_api_key_team_alias") or data.get("end_user") or ""),
        session=str(data.get("trace_id") or "") if data.get("session_id") is None else str(data["session_id"]),
        blocks=text_blocks(text, prompt_tokens=prompt, block_size=BLOCK_SIZE, salt=salt),
        cached_tokens=_cached(metadata),
    )


def _cached(metadata: Any) -> int | None:
    """Tokens from the provider's prompt cache, where its usage object says."""
    usage = metadata.get("usage_object") if isinstance(metadata, dict) else None
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    found = details.get("cached_tokens") if isinstance(details, dict) else None
    return found if isinstance(found, int) else None
