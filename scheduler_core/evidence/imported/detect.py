"""Which tool wrote a result file, by the names in it: each tool keeps its own."""

import json
from pathlib import Path
from typing import Any

from scheduler_core.types.errors import InputError, Problem

# Tool -> names that its CSV header, or the first of its JSON objects that hold requests, has.
_CSV = {"llm-d": {"prompt_tokens", "generation_tokens", "ttft", "launch_time", "finish_time"}}
_ROW = {
    "vllm-requests": {"queued_ts", "first_token_ts", "last_token_ts"},
    "aiperf": {"metadata", "metrics"},
}
_WHOLE = {
    "guidellm": {"benchmarks"},
    "genai-bench": {"individual_request_metrics"},
    "sglang-bench": {"input_lens", "output_lens", "ttfts", "itls", "total_output_tokens_retokenized"},
    "vllm-bench": {"input_lens", "output_lens", "ttfts", "itls"},
}
_LISTED = {"inference-perf": {"start_time", "info"}}


def detect_tool(path: Path) -> str:
    """The tool that wrote ``path``, a key of ``readers.READERS``; `InputError` when its names fit none.

    vLLM's and SGLang's serving benchmarks write one layout with the same meaning; SGLang's has a count more.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from None
    first = text.split("\n", 1)[0]
    found = _fitting(_CSV, {name.strip() for name in first.split(",")})
    row = _json(first)
    if found is None and isinstance(row, dict):
        found = _fitting(_ROW, row.keys()) or _fitting(_WHOLE, row.keys())
    if found is None:
        found = _of_whole(_json(text) or _json(text.rsplit("\n", 1)[-1]))
    if found is None:
        known = ", ".join((*_CSV, *_ROW, *_WHOLE, *_LISTED))
        raise InputError([Problem(str(path), f"is of no known tool ({known}); name the tool if it is one of them")])
    return found


def _of_whole(data: Any) -> str | None:
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return _fitting(_LISTED, data[0].keys())
    return _fitting(_WHOLE, data.keys()) if isinstance(data, dict) else None


def _fitting(tools: dict[str, set[str]], names: Any) -> str | None:
    return next((tool for tool, needed in tools.items() if needed <= set(names)), None)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
