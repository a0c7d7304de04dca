"""OpenTelemetry GenAI spans (OTLP JSON) as requests."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scheduler_core.workload.logs.hashing import text_blocks
from scheduler_core.workload.logs.lines import objects
from scheduler_core.workload.logs.rows import BLOCK_SIZE, LoggedRequest, Row, UnusableRowError, count

_CACHED = "gen_ai.usage.cache_read.input_tokens"


def otlp(path: Path) -> Iterator[Row]:
    """Spans of GenAI calls, by the attributes of OpenTelemetry's semantic conventions."""
    number = 0
    for place, data in objects(path):
        for resource in data.get("resourceSpans") or [] if isinstance(data, dict) else []:
            service = _attributes(resource.get("resource") or {}).get("service.name", "")
            for scope in resource.get("scopeSpans") or []:
                for span in scope.get("spans") or []:
                    number += 1
                    yield Row(f"{place}, span {number}", partial(_span, span, str(service)))


def _span(span: Mapping[str, Any], service: str, salt: bytes) -> LoggedRequest:
    said = _attributes(span)
    if "gen_ai.usage.input_tokens" not in said:
        raise UnusableRowError("spans without token counts")
    text = said.get("gen_ai.prompt") or said.get("gen_ai.input.messages") or ""
    prompt = count(said, "gen_ai.usage.input_tokens")
    return LoggedRequest(
        int(span["startTimeUnixNano"]),
        prompt,
        count(said, "gen_ai.usage.output_tokens"),
        tenant=service,
        session=str(said.get("gen_ai.conversation.id", "")),
        blocks=text_blocks(str(text), prompt_tokens=prompt, block_size=BLOCK_SIZE, salt=salt),
        cached_tokens=count(said, _CACHED) if _CACHED in said else None,
    )


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as plain values; OTLP writes whole numbers as text."""
    found = {}
    for item in holder.get("attributes") or []:
        value = item.get("value") or {}
        kind, content = next(iter(value.items()), ("", None))
        found[str(item.get("key"))] = int(str(content)) if kind == "intValue" else content
    return found
