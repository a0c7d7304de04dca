"""One answer of the mock: tokens as server-sent events in a server's own layout, and what goes wrong on the way."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpu_runner.server.mock.behaviour import Behaviour
from gpu_runner.server.mock.wire import Exchange
from scheduler_core.types.time import Ns

STALL_S = 2.0
_AFTER_TWO = ("error_in_stream", "no_finish", "reset")


@dataclass(frozen=True)
class Question:
    """What a completion request asks for. ``prompt`` are token ids, made up from the text where text was sent."""

    prompt: tuple[int, ...]
    max_tokens: int
    stream: bool
    chat: bool
    usage_at_end: bool
    usage_always: bool
    token_ids: bool
    messages: tuple[dict[str, Any], ...] = ()

    @classmethod
    def read(cls, body: bytes, *, chat: bool) -> "Question":
        """The question in a request's body; `ValueError` for one that cannot be answered."""
        data = json.loads(body)
        options = data.get("stream_options") or {}
        said = data.get("messages") if chat else data.get("prompt")
        if not said:
            raise ValueError("messages is missing" if chat else "prompt is missing")
        limit = data.get("max_completion_tokens") or data.get("max_tokens") or 16
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"max_tokens must be at least 1, got {limit!r}.")
        return cls(
            prompt=_tokens(said),
            max_tokens=limit,
            stream=bool(data.get("stream")),
            chat=chat,
            usage_at_end=bool(options.get("include_usage")),
            usage_always=bool(options.get("continuous_usage_stats")),
            token_ids=bool(data.get("return_token_ids")),
            messages=tuple(said) if chat else (),
        )


def _tokens(said: Any) -> tuple[int, ...]:
    """Ids as given; of text one id a word."""
    if isinstance(said, list) and all(isinstance(item, int) for item in said):
        return tuple(said)
    words = " ".join(str(item.get("content", "")) for item in said) if isinstance(said, list) else str(said)
    return tuple(int.from_bytes(word.encode()[:7], "big") for word in words.split())


@lru_cache(maxsize=1024)
def _after_text(dialect: str, finish: str | None, ids: tuple[int, ...] | None) -> str:
    """What a choice says after its text, as a server of ``dialect`` lays it out, to the closing brace."""
    rest = {"logprobs": None, "finish_reason": finish}
    rest |= {"matched_stop": None} if dialect == "sglang" else {"stop_reason": None}
    return json.dumps(rest | ({"token_ids": ids} if dialect == "vllm" else {}), separators=(",", ":"))[1:]


@dataclass
class Answer:
    """An answer under way. An engine calls `tokens` and, when the limit is reached, the answer ends by itself.

    ``sent`` is the truth that a client is held to: when each chunk was handed to the socket, and its tokens.
    """

    exchange: Exchange
    question: Question
    behaviour: Behaviour
    number: int
    on_end: Callable[["Answer", str], None]
    cached_tokens: int = 0
    emitted: int = 0
    sent: list[tuple[Ns, int]] = field(default_factory=list)
    over: bool = False
    _begun: bool = False
    _held: int = 0
    _stalled: bool = False

    def __post_init__(self) -> None:
        self.exchange.on_gone = lambda: self._end("abort")
        self.fault = self.behaviour.faults.get(self.number)
        kind = "chat.completion.chunk" if self.question.chat else "text_completion"
        head = {"id": f"cmpl-{self.number}", "object": kind, "created": 0, "model": self.behaviour.model}
        self._head = json.dumps(head, separators=(",", ":"))[:-1]

    def tokens(self, count: int) -> None:
        """``count`` tokens are ready; they go out as one chunk."""
        if self.over:
            return
        if self.fault == "stall" and self.emitted >= 2 and not self._stalled:
            self._stalled = True
            self._held = count
            asyncio.get_running_loop().call_later(STALL_S, self._resume)
            return
        if self._held:
            self._held += count
            return
        count = min(count, self.question.max_tokens - self.emitted)
        self.emitted += count
        self._chunk(count)
        if self.fault in _AFTER_TWO and self.emitted >= 2:
            self._break_off()
        elif self.emitted >= self.question.max_tokens:
            self._finish()

    def _resume(self) -> None:
        held, self._held = self._held, 0
        self.tokens(held)

    def _chunk(self, count: int) -> None:
        if not self.question.stream:
            return
        if not self._begun:
            self._begin()
        last = self.emitted >= self.question.max_tokens and self.fault not in _AFTER_TWO
        ids = tuple(range(self.emitted - count, self.emitted)) if self.question.token_ids else None
        choice = self._choice(" tok" * count, "length" if last else None, ids)
        usage = self.question.usage_always and self.behaviour.usage == "full"
        at = self._event(choice, usage=usage)
        self.sent.append((at, count))

    def _begin(self) -> None:
        self._begun = True
        self.exchange.begin_stream()
        if self.question.chat or self.behaviour.empty_first_delta:
            self._event(self._choice("", None, None))

    def _choice(self, text: str, finish: str | None, ids: tuple[int, ...] | None) -> str:
        """The list of choices with its one; ``text`` needs no escapes."""
        rest = _after_text(self.behaviour.dialect, finish, ids)
        if not self.question.chat:
            return f'[{{"index":0,"text":"{text}",{rest}]'
        role = "" if self._begun and self.emitted else '"role":"assistant",'
        return f'[{{"index":0,"delta":{{{role}"content":"{text}"}},{rest}]'

    def _event(self, choices: str, *, usage: bool = False) -> Ns:
        if self.behaviour.keep_alive_comments:
            self.exchange.write(b": keep-alive\n\n")
        tail = f',"usage":{self._usage()}' if usage else ""
        return self.exchange.write(f'data: {self._head},"choices":{choices}{tail}}}\n\n'.encode())

    def _usage(self) -> str:
        prompt, said = len(self.question.prompt), self.emitted
        return (
            f'{{"prompt_tokens":{prompt},"total_tokens":{prompt + said},"completion_tokens":{said},'
            f'"prompt_tokens_details":{{"cached_tokens":{self.cached_tokens}}}}}'
        )

    def _finish(self) -> None:
        if not self.question.stream:
            self._whole()
        else:
            if self.question.usage_at_end and self.behaviour.usage != "none":
                self._event("[]", usage=True)
            if self.fault != "no_done":
                self.exchange.write(b"data: [DONE]\n\n")
            self.exchange.end_stream()
        self._end("length")

    def _whole(self) -> None:
        head = self._head.replace("chat.completion.chunk", "text_completion")
        choice = self._choice(" tok" * self.emitted, "length", None)
        self.exchange.answer(200, f'{head},"choices":{choice},"usage":{self._usage()}}}'.encode())

    def _break_off(self) -> None:
        if self.fault == "reset":
            self.exchange.reset()
        else:
            if self.fault == "error_in_stream":
                error = {"error": {"message": "engine ran out of memory", "type": "InternalServerError", "code": 500}}
                self.exchange.write(f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode())
            self.exchange.end_stream()
        self._end("error")

    def answer_at_once(self) -> bool:
        """Whether the answer's fault is one that shows before any token; it is answered then."""
        if self.fault == "plain_json":
            self.emitted = self.question.max_tokens
            self._whole()
        elif self.fault == "empty_stream":
            self.exchange.begin_stream()
            self.exchange.write(b"data: [DONE]\n\n")
            self.exchange.end_stream()
        elif self.fault == "refused":
            self.exchange.answer(429, b'{"error":{"message":"queue is full","type":"TooManyRequests","code":429}}')
        elif self.fault == "failed":
            self.exchange.answer(500, b'{"error":{"message":"engine is dead","type":"InternalServerError","code":500}}')
        elif self.fault != "silent":
            return False
        self._end("error")
        return True

    def _end(self, reason: str) -> None:
        if not self.over:
            self.over = True
            self.on_end(self, reason)
