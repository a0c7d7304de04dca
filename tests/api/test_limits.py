"""The cap on bodies, as a server meets it: declared sizes, undeclared ones, and what is left alone."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from controlplane.api.limits import BodyLimit

Messages = list[dict[str, Any]]


async def _reader(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads the whole body, then answers with its size."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def _ask(app: Any, parts: list[bytes], *, declared: bytes | None = None) -> tuple[int, bytes, int]:
    """(status, body, parts read) of a request that arrives in ``parts``."""
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})
    total = len(waiting)
    sent: Messages = []

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [] if declared is None else [(b"content-length", declared)]
    await app({"type": "http", "headers": headers}, receive, send)
    return sent[0]["status"], sent[1]["body"], total - len(waiting)


async def test_a_body_within_the_cap_passes() -> None:
    app = BodyLimit(_reader, max_bytes=100)
    assert (await _ask(app, [b"x" * 60, b"x" * 40]))[:2] == (200, b"100")


async def test_a_declared_size_beyond_it_is_refused_unread() -> None:
    app = BodyLimit(_reader, max_bytes=100)
    status, body, read = await _ask(app, [b"x" * 101], declared=b"101")
    assert (status, read) == (413, 0)
    assert json.loads(body)["code"] == "too_large"


async def test_an_undeclared_size_is_counted_and_stopped_at_the_cap() -> None:
    """A thousand parts are on their way; the sixth one is beyond 100 bytes and the rest is never read."""
    app = BodyLimit(_reader, max_bytes=100)
    status, _, read = await _ask(app, [b"x" * 20] * 1000)
    assert (status, read) == (413, 6)


async def test_a_size_that_lies_is_counted_too() -> None:
    app = BodyLimit(_reader, max_bytes=100)
    assert (await _ask(app, [b"x" * 200], declared=b"5"))[0] == 413
    assert (await _ask(app, [b"x" * 200], declared=b"many"))[0] == 413


async def test_sockets_are_left_alone() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        seen.append(await receive())

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.receive", "bytes": b"x" * 200}

    await BodyLimit(app, max_bytes=100)({"type": "websocket", "headers": []}, receive, _never)
    assert len(seen) == 1


async def _never(message: Any) -> None:
    raise AssertionError(message)
