"""Readers of logs, one per kind: OpenTelemetry GenAI spans (OTLP JSON), LiteLLM and gateway logs."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import NS_PER_S, Ns
from scheduler_core.workload.logs.hashing import text_blocks
from scheduler_core.workload.logs.rows import LoggedRequest, ReadLog, in_order

BLOCK_SIZE = 16


class _UnusableRowError(Exception):
    """A row is no usable request; the text is the reason."""


def read_log(path: Path, kind: str, *, salt: bytes) -> ReadLog:
    """The requests of a log. ``salt`` keys the block identities of prompt text.

    Raises:
        InputError: the file cannot be read, is of another kind, or holds no usable request.
    """
    reader = READERS.get(kind)
    if reader is None:
        raise InputError([Problem("format", f"{kind!r} is not one of {', '.join(READERS)}")])
    skipped: dict[str, int] = {}
    found = []
    try:
        for row in reader(_objects(path)):
            try:
                found.append(row(salt))
            except _UnusableRowError as reason:
                skipped[str(reason)] = skipped.get(str(reason), 0) + 1
    except (OSError, UnicodeDecodeError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from None
    return in_order(found, skipped, str(path))


Row = Callable[[bytes], LoggedRequest]


def _objects(path: Path) -> Iterator[Any]:
    """The JSON objects of a file: one whole value, or one a line."""
    text = path.read_text(encoding="utf-8")
    try:
        data = json.loads(text)
        yield from data if isinstance(data, list) else [data]
        return
    except ValueError:
        pass
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise InputError([Problem(f"{path} line {number}", f"not JSON: {error}")]) from None


# --- OpenTelemetry ---------------------------------------------------------------------------------------------------


def otlp(objects: Iterator[Any]) -> Iterator[Row]:
    """Spans of GenAI calls, by the attributes of OpenTelemetry's semantic conventions."""
    for data in objects:
        for resource in data.get("resourceSpans") or [] if isinstance(data, dict) else []:
            service = _attributes(resource.get("resource") or {}).get("service.name", "")
            for scope in resource.get("scopeSpans") or []:
                for span in scope.get("spans") or []:
                    yield partial(_span, span, str(service))


def _span(span: Mapping[str, Any], service: str, salt: bytes) -> LoggedRequest:
    said = _attributes(span)
    if "gen_ai.usage.input_tokens" not in said:
        raise _UnusableRowError("spans without token counts")
    text = said.get("gen_ai.prompt") or said.get("gen_ai.input.messages") or ""
    prompt = _count(said, "gen_ai.usage.input_tokens")
    return LoggedRequest(
        int(span["startTimeUnixNano"]),
        prompt,
        _count(said, "gen_ai.usage.output_tokens"),
        tenant=service,
        session=str(said.get("gen_ai.conversation.id", "")),
        blocks=text_blocks(str(text), prompt_tokens=prompt, block_size=BLOCK_SIZE, salt=salt),
    )


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as plain values; OTLP writes whole numbers as text."""
    found = {}
    for item in holder.get("attributes") or []:
        value = item.get("value") or {}
        kind, content = next(iter(value.items()), ("", None))
        found[str(item.get("key"))] = int(str(content)) if kind == "intValue" else content
    return found


# --- gateways -------------------------------------------------------------------------------------------------------


def litellm(objects: Iterator[Any]) -> Iterator[Row]:
    """LiteLLM's standard logging payload, one JSON object a request."""
    for data in objects:
        yield partial(_payload, data)


def _payload(data: Any, salt: bytes) -> LoggedRequest:
    if not isinstance(data, dict) or "startTime" not in data:
        raise _UnusableRowError("rows without startTime")
    prompt = _count(data, "prompt_tokens")
    failed = data.get("status", "success") != "success"
    metadata = data.get("metadata") or {}
    messages = data.get("messages")
    parts = messages if isinstance(messages, list) else [{"content": messages or ""}]
    text = "".join(str(item.get("content", "")) for item in parts)
    return LoggedRequest(
        _instant(data["startTime"]),
        prompt,
        0 if failed else _count(data, "completion_tokens"),
        tenant=str(metadata.get("user_api_key_team_alias") or data.get("end_user") or ""),
        session=str(data.get("trace_id") or "") if data.get("session_id") is None else str(data["session_id"]),
        blocks=text_blocks(text, prompt_tokens=prompt, block_size=BLOCK_SIZE, salt=salt),
    )


def _count(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if value is None:
        raise _UnusableRowError(f"rows without {name}")
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise _UnusableRowError(f"rows whose {name} is no number") from None
    if number < 0:
        raise _UnusableRowError(f"rows whose {name} is negative")
    return number


def _instant(value: Any) -> Ns:
    """Epoch seconds, or a wall-clock time with or without a zone (then UTC)."""
    if isinstance(value, int | float) and value == value and abs(value) < 1e12:
        return round(value * NS_PER_S)
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        raise _UnusableRowError("rows whose startTime is no time") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * NS_PER_S)


READERS: dict[str, Callable[[Iterator[Any]], Iterator[Row]]] = {"otlp": otlp, "litellm": litellm}
