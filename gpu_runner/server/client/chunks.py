"""What a stream chunk says: how many tokens, the answer's end, its counts, or a failure inside a 200."""

import json
from typing import Any

import msgspec

DONE = b"[DONE]"


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    """Token counts of the prompt, and of the answer so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct, gc=False):
    """What a chat chunk adds: content, or else a thought or a call of a tool, which are output too."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct, gc=False):
    """One answer's part of a chunk: ``text`` of a completion, or ``delta`` of a chat."""

    text: Any = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    delta: _Delta | None = None


class _Chunk(msgspec.Struct, gc=False):
    """The fields of a chunk that are looked at; to decode these alone takes a sixth of the time that all take."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    metrics: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Heard:
    """Everything an answer has said so far.

    ``tokens`` counts what chunks carried, as the server reported it with each chunk (``reported``), or else one token
    for each chunk with text. ``declared`` are the server's own totals, which decide at the end.
    """

    __slots__ = (
        "cached_tokens", "declared", "done", "empty", "error", "finish", "keep_answer", "prompt_tokens", "queue_ms",
        "reported", "text", "token_ids", "tokens",
    )  # fmt: skip

    def __init__(self, *, keep_answer: bool = False) -> None:
        self.tokens = 0
        self.reported = False
        self.finish: str | None = None
        self.done = False
        self.error = ""
        self.declared: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.queue_ms: float | None = None
        self.empty = 0
        self.keep_answer = keep_answer
        self.token_ids: list[int] = []
        self.text: list[str] = []

    def take(self, payload: bytes) -> int:
        """Take one event; how many new tokens it brought. Runs for every chunk, so it looks at no more than it must."""
        if payload == DONE:
            self.done = True
            return 0
        try:
            chunk = _decode(payload)
        except msgspec.MsgspecError:
            chunk = _read_as_python_does(payload)
        usage, choices = chunk.usage, chunk.choices
        if chunk.error:
            self.error = error_text(chunk.error)
        if not choices:
            self._without_choice(chunk)
            return 0
        choice = choices[0]
        said = choice.text
        if said is None and choice.delta is not None:
            said = _of_delta(choice.delta)
        carried = 1 if said else 0
        if choice.finish_reason:
            self.finish = choice.finish_reason
        if choice.token_ids:
            self.reported = True
            carried = len(choice.token_ids)
        if self.keep_answer:
            self._keep(said, choice)
        if usage is not None:
            total = usage.completion_tokens
            if total is not None:
                self.reported = True
                self.declared = total
                carried = max(0, total - self.tokens)
            if self.finish is not None:
                self._usage(usage)
        if not carried:
            self.empty += 1
        self.tokens += carried
        return carried

    def _keep(self, said: Any, choice: _Choice) -> None:
        """Keep the answer itself, for the turn that follows it."""
        if isinstance(said, str):
            self.text.append(said)
        self.token_ids += choice.token_ids or []

    def _without_choice(self, chunk: _Chunk) -> None:
        """The usage chunk at the end, or an error object where a chunk was due."""
        if chunk.usage is not None:
            self._usage(chunk.usage)
        if isinstance(chunk.metrics, dict):
            self.queue_ms = chunk.metrics.get("queue_time_ms")

    def _usage(self, usage: _Usage) -> None:
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            self.cached_tokens = details.cached_tokens
        if usage.completion_tokens is not None:
            self.declared = usage.completion_tokens


def _read_as_python_does(payload: bytes) -> _Chunk:
    """A chunk with what `json` takes beside the standard: NaN, and half of a surrogate pair, whose other half is in
    the next chunk. What is none all the same is a chunk that is an error.
    """
    try:
        return msgspec.convert(json.loads(payload), _Chunk)
    except msgspec.ValidationError as error:
        return _Chunk(error=f"a chunk is not one of a completion ({error}): {payload[:120]!r}")
    except ValueError:
        return _Chunk(error=f"a chunk is not JSON: {payload[:120]!r}")


def _of_delta(delta: _Delta) -> Any:
    return delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.content


def error_text(error: Any) -> str:
    """An error object in words."""
    if isinstance(error, dict):
        return str(error.get("message") or error)[:500]
    return str(error)[:500]


def body_error(body: bytes) -> str:
    """What an unsuccessful answer's body says."""
    try:
        data = json.loads(body)
    except ValueError:
        return body[:200].decode(errors="replace").strip()
    if isinstance(data, dict):
        return error_text(data.get("error") or data.get("detail") or data.get("message") or data)
    return str(data)[:200]
