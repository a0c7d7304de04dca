"""SGLang's request log (``--log-requests``) as requests, in its JSON form or as lines of its server log.

``request.finished`` holds all that a request was: token counts, cached tokens and how long it took. From level 2 on it
holds the prompt too, above 2,048 characters or tokens only its two ends.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scheduler_core.types.time import NS_PER_S
from scheduler_core.workload.logs.hashing import text_blocks, token_blocks
from scheduler_core.workload.logs.lines import plain_lines
from scheduler_core.workload.logs.rows import BLOCK_SIZE, LoggedRequest, Row, UnusableRowError, count, instant

_TEXT_FORM = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] Finish: obj=.*?\brid='([^']*)'.*'meta_info': (.*)")
_FIELD = re.compile(r"'(prompt_tokens|completion_tokens|cached_tokens|e2e_latency)': ([\d.e+-]+)")
_CUT = 2048
"""Longer texts and lists are written as their two ends of half that length."""


def sglang(path: Path) -> Iterator[Row]:
    """Requests by their end; what was still running when the log ends is not in it."""
    for place, line in plain_lines(path):
        if line.startswith("{"):
            data = _parsed(line)
            if data.get("event") == "request.finished":
                yield Row(place, partial(_finished, data))
        elif match := _TEXT_FORM.search(line):
            meta = {name: float(value) for name, value in _FIELD.findall(match[3])}
            yield Row(place, partial(_finished, {"timestamp": match[1], "out": {"meta_info": meta}}))


def _parsed(line: str) -> Mapping[str, Any]:
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _finished(data: Mapping[str, Any], salt: bytes) -> LoggedRequest:
    meta = (data.get("out") or {}).get("meta_info") or {}
    prompt, latency = count(meta, "prompt_tokens"), meta.get("e2e_latency")
    if latency is None:
        raise UnusableRowError("rows without e2e_latency")
    return LoggedRequest(
        instant(data, "timestamp") - round(float(latency) * NS_PER_S),
        prompt,
        count(meta, "completion_tokens"),
        blocks=_blocks(data.get("obj") or {}, prompt, salt),
        cached_tokens=count(meta, "cached_tokens") if "cached_tokens" in meta else None,
    )


def _blocks(said: Mapping[str, Any], prompt: int, salt: bytes) -> tuple[int, ...]:
    """Identities of the beginning that the log has of a prompt."""
    ids, text = said.get("input_ids"), said.get("text")
    if isinstance(ids, list) and not any(isinstance(item, list) for item in ids):
        return token_blocks(_head(ids), block_size=BLOCK_SIZE, salt=salt)
    if isinstance(text, str):
        known = text[: _CUT // 2] if len(text) == _CUT + len("...") else text
        return text_blocks(known, prompt_tokens=prompt, block_size=BLOCK_SIZE, salt=salt)
    return ()


def _head(ids: Sequence[Any]) -> list[int]:
    return ids[: ids.index("...")] if "..." in ids else list(ids)  # type: ignore[return-value]
