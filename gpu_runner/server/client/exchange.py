"""One request on the wire: from the bytes that go out to a verdict on what came back."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_runner.server.client.chunks import Heard, body_error, error_text
from gpu_runner.server.client.sse import EventParser
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import Ns

LARGEST_ERROR = 64 * 1024
TURNED_AWAY = (429, 503)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a try ended. ``again``: a patient client would send it once more, ``after_s`` later if the server said so."""

    outcome: Outcome
    stage: str
    reason: str
    again: bool = False
    after_s: float | None = None


class Exchange:
    """Takes one answer. ``on_chunk`` gets (time, tokens) of each chunk with tokens, ``on_end`` the `Ending`, once."""

    __slots__ = (
        "_body", "_bytes", "_events", "_headers", "_on_chunk", "_on_end", "_stream", "first", "heard", "over", "status",
    )  # fmt: skip

    def __init__(
        self, on_chunk: Callable[[Ns, int], None], on_end: Callable[[Ending, Ns], None], *, keep_answer: bool
    ) -> None:
        self.heard = Heard(keep_answer=keep_answer)
        self.status = 0
        self.first = False
        self.over = False
        self._on_chunk = on_chunk
        self._on_end = on_end
        self._events = EventParser()
        self._headers: dict[str, str] = {}
        self._stream = False
        self._body: list[bytes] = []
        self._bytes = 0

    @property
    def comments(self) -> int:
        """Keep-alive lines so far."""
        return self._events.comments

    def head(self, status: int, headers: dict[str, str], at_ns: Ns) -> None:
        self.status = status
        self._headers = headers
        self._stream = status == 200 and "text/event-stream" in headers.get("content-type", "")

    def body(self, pieces: list[bytes], at_ns: Ns) -> None:
        if not self._stream:
            self._bytes += sum(map(len, pieces))
            if self._bytes <= LARGEST_ERROR:
                self._body += pieces
            return
        take = self.heard.take
        for payload in self._events.feed(pieces[0] if len(pieces) == 1 else b"".join(pieces)):
            tokens = take(payload)
            if tokens:
                self.first = True
                self._on_chunk(at_ns, tokens)

    def complete(self, at_ns: Ns) -> None:
        self.end(self._judge(), at_ns)

    def lost(self, reason: str, at_ns: Ns) -> None:
        heard = self.heard
        if heard.done or (heard.finish and not heard.error):
            self.end(Ending(Outcome.FINISHED, "stream", ""), at_ns)
        else:
            self.end(Ending(Outcome.FAILED, self._stage(), reason, again=not self.first), at_ns)

    def end(self, ending: Ending, at_ns: Ns) -> None:
        """The try is over, once."""
        if not self.over:
            self.over = True
            self._on_end(ending, at_ns)

    def _stage(self) -> str:
        if self.first:
            return "stream"
        return "first_token" if self.status else "answer"

    def _judge(self) -> Ending:
        heard = self.heard
        if self.status != 200:
            return self._refusal()
        if not self._stream:
            text = body_error(b"".join(self._body)) if b'"error"' in b"".join(self._body) else ""
            return Ending(Outcome.FAILED, "first_token", text or "answered whole where a stream was asked for")
        if heard.error:
            return Ending(Outcome.FAILED, self._stage(), heard.error)
        if not self.first:
            return Ending(Outcome.FAILED, "first_token", "the stream ended without a token")
        if self._events.torn or (heard.finish is None and not heard.done):
            return Ending(Outcome.FAILED, "stream", "the stream ended with neither a finish reason nor [DONE]")
        if heard.finish in ("abort", "error"):
            return Ending(Outcome.FAILED, "stream", error_text(f"finish reason {heard.finish}"))
        return Ending(Outcome.FINISHED, "stream", "")

    def _refusal(self) -> Ending:
        said = body_error(b"".join(self._body))
        reason = f"status {self.status}" + (f": {said}" if said else "")
        if self.status not in TURNED_AWAY:
            return Ending(Outcome.FAILED, "answer", reason)
        try:
            after_s = float(self._headers.get("retry-after", ""))
        except ValueError:
            after_s = None
        return Ending(Outcome.REJECTED, "answer", reason, again=True, after_s=after_s)
