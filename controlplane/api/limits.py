"""The size cap in front of everything: a body that is too large is refused while it arrives, not after it was stored.

Django keeps a whole body, on disk if need be, before a view can look at its size; without a ``Content-Length`` only
counting what arrives can stop it.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

_REFUSAL = {
    "type": "about:blank",
    "title": "Too large",
    "status": 413,
    "code": "too_large",
    "problems": [],
    "request_id": "",
}


class _TooLargeError(Exception):
    """The body has more bytes than allowed."""


class BodyLimit:
    """ASGI middleware: HTTP bodies up to ``max_bytes`` pass, larger ones are answered with 413."""

    def __init__(self, app: App, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _declared(scope) > self._max_bytes:
            await self._refuse(send)
            return
        answered = False

        async def watched_send(message: Message) -> None:
            nonlocal answered
            answered = answered or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, self._counted(receive), watched_send)
        except _TooLargeError:
            if not answered:
                await self._refuse(send)

    def _counted(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise _TooLargeError
            return message

        return counted

    async def _refuse(self, send: Send) -> None:
        detail = f"The request body is larger than the {self._max_bytes} bytes that this server accepts."
        body = json.dumps({**_REFUSAL, "detail": detail}).encode()
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _declared(scope: Scope) -> int:
    """``Content-Length`` of a request; 0 when it says none, or nothing readable."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0
