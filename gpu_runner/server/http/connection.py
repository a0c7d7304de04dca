"""One HTTP/1.1 connection: bytes out, head, body and end in, each with the time at which the socket gave it."""

import asyncio
import time
from typing import Protocol, cast

import httptools

from scheduler_core.types.time import Ns

LARGEST_HEAD = 64 * 1024


class Receiver(Protocol):
    """Takes the answer to one request. After `complete` or `lost` nothing more comes."""

    def head(self, status: int, headers: dict[str, str], at_ns: Ns) -> None:
        """Status line and headers (names in lower case) are in."""

    def body(self, pieces: list[bytes], at_ns: Ns) -> None:
        """The next pieces of the body, as one read of the socket gave them; the list is the connection's own."""

    def complete(self, at_ns: Ns) -> None:
        """The answer is whole."""

    def lost(self, reason: str, at_ns: Ns) -> None:
        """The connection ended first."""


class Connection(asyncio.Protocol):
    """A connection that serves one request at a time.

    ``reusable`` is true between two requests while the server keeps the connection open. ``answers`` counts whole
    answers, so that a caller can tell a kept-alive connection that the server has just closed from a broken answer.
    """

    def __init__(self) -> None:
        self.reusable = False
        self.answers = 0
        self.got_bytes = False
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # llhttp's callback: no Python frame for each piece
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._until_close = False
        self._now: Ns = 0

    # --- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self.reusable = True

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic_ns()
        self.got_bytes = True
        try:
            self._parser.feed_data(data)
            if self._pieces:
                self._hand_over()
        except httptools.HttpParserError as error:
            self._lose(f"not HTTP: {error or type(error).__name__}")
            self.close()

    def eof_received(self) -> bool:
        if self._until_close and self._receiver is not None:
            self._now = time.monotonic_ns()
            self.on_message_complete()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._now = time.monotonic_ns()
        self._lose(f"connection lost: {error}" if error else "the server closed the connection")

    # --- llhttp -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = {}
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > LARGEST_HEAD:
            raise httptools.HttpParserError(f"headers above {LARGEST_HEAD} bytes")
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        headers = self._headers
        chunked = "chunked" in headers.get("transfer-encoding", "")
        self._until_close = not chunked and "content-length" not in headers
        if self._receiver is not None:
            self._receiver.head(self._parser.get_status_code(), headers, self._now)

    def on_message_complete(self) -> None:
        if self._pieces:
            self._hand_over()
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        self.answers += 1
        self.reusable = self._parser.should_keep_alive() and not self._until_close
        receiver.complete(self._now)

    def _hand_over(self) -> None:
        if self._receiver is not None:
            self._receiver.body(self._pieces, self._now)
        self._pieces.clear()

    # --- the caller ---------------------------------------------------------------------------------------------

    def send(self, request: bytes, receiver: Receiver) -> Ns:
        """Write a whole request; returns when it was handed to the socket."""
        assert self._transport is not None and self._receiver is None
        self.reusable = self.got_bytes = False
        self._receiver = receiver
        self._transport.write(request)
        return time.monotonic_ns()

    def close(self) -> None:
        """End the connection at once; an open request's receiver is not told."""
        self.reusable = False
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def _lose(self, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost(reason, self._now)
