"""The HTTP side of the mock: requests in, whole answers or streams out."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

import httptools

from scheduler_core.types.time import Ns

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: headway-mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class Asked:
    """One request: method, path, headers in lower case, body; ``id`` is what its x-request-id names."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body

    @property
    def id(self) -> str:
        """The caller's name for the request."""
        return self.headers.get("x-request-id", "")


class Exchange:
    """The answer to one request. ``gone`` once the client has left."""

    def __init__(self, transport: asyncio.Transport, asked: Asked) -> None:
        self.asked = asked
        self.gone = False
        self._transport = transport
        self.on_gone: Callable[[], None] | None = None

    def answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole answer."""
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\nserver: headway-mock\r\n"
        head += f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._write(head.encode() + body)

    def begin_stream(self) -> None:
        """Head of a stream of server-sent events."""
        self._write(_STREAM_HEAD)

    def write(self, data: bytes) -> Ns:
        """A piece of the stream; returns when it was handed to the socket."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data))
        return time.monotonic_ns()

    def end_stream(self) -> None:
        """The stream's orderly end."""
        self._write(b"0\r\n\r\n")

    def reset(self) -> None:
        """Break the connection off."""
        self._transport.abort()

    def leave(self) -> None:
        """The client has gone."""
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()

    def _write(self, data: bytes) -> None:
        if not self.gone:
            self._transport.write(data)


Serve = Callable[[Exchange], None]


class Wire(asyncio.Protocol):
    """A connection of the mock; each whole request is handed to ``serve``."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._path = ""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._exchange is not None:
            self._exchange.leave()

    def on_message_begin(self) -> None:
        self._headers, self._body, self._path = {}, [], ""

    def on_url(self, url: bytes) -> None:
        self._path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        assert self._transport is not None
        method = self._parser.get_method().decode("ascii")
        asked = Asked(method, self._path, self._headers, b"".join(self._body))
        self._exchange = Exchange(self._transport, asked)
        self._serve(self._exchange)
