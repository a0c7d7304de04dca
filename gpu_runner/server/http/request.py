"""Requests as bytes, and whole answers for everything that is not the load itself."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_runner.server.http.connection import Connection
from gpu_runner.server.http.pool import ConnectError, Origin, Pool
from scheduler_core.types.time import Ns

LARGEST_ANSWER = 16 * 1024 * 1024


class NoAnswerError(Exception):
    """A request got no whole answer; the message says why."""


@dataclass
class Answer:
    """A whole answer."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON, None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def request_bytes(
    origin: Origin, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    """A whole request, ready for the socket."""
    head = head_bytes(origin, method, path, headers or {})
    if body or method == "POST":
        return head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    return head + b"\r\n"


def head_bytes(origin: Origin, method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """What requests of one kind begin with: everything up to what a body says of itself."""
    lines = [f"{method} {origin.prefix}{path} HTTP/1.1", f"host: {origin.authority}", "accept: */*"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, ""]).encode("latin-1")


class _UnheardError(NoAnswerError):
    """The connection was lost before anything of the answer came."""


class _Whole:
    """Gathers a whole answer."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parts: list[bytes] = []
        self._bytes = 0

    def head(self, status: int, headers: dict[str, str], at_ns: Ns) -> None:
        self.answer.status, self.answer.headers = status, headers

    def body(self, pieces: list[bytes], at_ns: Ns) -> None:
        self._bytes += sum(map(len, pieces))
        if self._bytes > LARGEST_ANSWER:
            self.lost(f"the answer is larger than {LARGEST_ANSWER} bytes", at_ns)
        else:
            self._parts += pieces

    def complete(self, at_ns: Ns) -> None:
        self.answer.body = b"".join(self._parts)
        if not self.done.done():
            self.done.set_result(None)

    def lost(self, reason: str, at_ns: Ns) -> None:
        if not self.done.done():
            self.done.set_exception(NoAnswerError(reason))


async def ask(
    pool: Pool, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"",
    timeout_s: float = 10.0,
) -> Answer:  # fmt: skip
    """Send one request and wait for its whole answer; redirects are answers, not followed.

    Raises:
        NoAnswerError: no connection, no whole answer in time, or one that is too large.
    """
    sent = request_bytes(pool.origin, method, path, headers=headers, body=body)
    try:
        async with asyncio.timeout(timeout_s):
            kept = pool.idle()
            if kept is not None:
                try:
                    return await _exchange(pool, kept, sent)
                except _UnheardError:
                    pass  # the server closed it after the answer before, as some do after a failure of theirs
            return await _exchange(pool, await pool.open(), sent)
    except ConnectError as error:
        raise NoAnswerError(str(error)) from None
    except TimeoutError:
        raise NoAnswerError(f"no answer within {timeout_s:g} s") from None


async def _exchange(pool: Pool, connection: Connection, sent: bytes) -> Answer:
    """The answer to ``sent`` on a connection that was handed out; `_UnheardError` where not even its head came."""
    whole = _Whole()
    try:
        connection.send(sent, whole)
        await whole.done
    except NoAnswerError as error:
        connection.close()
        raise (_UnheardError if whole.answer.status == 0 else NoAnswerError)(str(error)) from None
    except BaseException:
        connection.close()
        raise
    finally:
        pool.give_back(connection)
    return whole.answer
