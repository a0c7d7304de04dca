"""The only way out of the web process: addresses checked when connecting, no redirects, short times, small answers."""

import json
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpcore

from scheduler_core.spec.addresses import Reach

TIMEOUT_S = 10.0
LONGEST_S = 30.0
LARGEST_BYTES = 256 * 1024


class NoAnswerError(Exception):
    """A request got no answer; the message says why, fit for people."""


@dataclass(frozen=True)
class Received:
    """An answer: status, headers, as much of the body as was read, and when its first byte came."""

    status: int
    headers: dict[str, str]
    body: bytes
    first_byte_ms: float
    cut: bool = False

    def json(self) -> Any:
        """The body as JSON, None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass(frozen=True)
class Outbound:
    """Requests to one server."""

    url: str
    reach: Reach
    headers: dict[str, str] = field(default_factory=dict)
    verify_tls: bool = True

    def get(self, path: str) -> Received:
        """A GET. `NoAnswerError` when the address may not be reached or nothing comes in time."""
        return self._send("GET", path, b"", {})

    def post(self, path: str, data: Any) -> Received:
        """A POST of JSON. `NoAnswerError` as in `get`."""
        return self._send("POST", path, json.dumps(data).encode(), {"content-type": "application/json"})

    def _send(self, method: str, path: str, body: bytes, extra: dict[str, str]) -> Received:
        began = time.monotonic()
        times = dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT_S)
        headers = {"host": urlsplit(self.url).netloc, "accept": "*/*", **self.headers, **extra}
        pool = httpcore.ConnectionPool(
            ssl_context=self._tls(), network_backend=_Checked(self.reach), max_connections=1, retries=0
        )
        try:
            with (
                pool,
                pool.stream(
                    method,
                    f"{self.url}{path}",
                    headers=[(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
                    content=body,
                    extensions={"timeout": times},
                ) as answer,
            ):
                first_ms = (time.monotonic() - began) * 1e3
                content, cut = _read(answer.iter_stream(), began)
                found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
                return Received(answer.status, found, content, first_ms, cut)
        except httpcore.TimeoutException:
            raise NoAnswerError(f"no answer within {TIMEOUT_S:g} s") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
            raise NoAnswerError(str(error) or type(error).__name__) from None

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _read(parts: Iterator[bytes], began: float) -> tuple[bytes, bool]:
    """The body up to the caps, and whether it was longer."""
    content = b""
    for part in parts:
        content += part
        if len(content) > LARGEST_BYTES or time.monotonic() - began > LONGEST_S:
            return content[:LARGEST_BYTES], True
    return content, False


class _Checked(httpcore.NetworkBackend):
    """Resolves by itself, asks whether the address may be reached, and connects to that very address."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} has no address: {error.strerror or error}") from None
        reason = ""
        for address in dict.fromkeys(str(item[4][0]) for item in found):
            refusal = self._reach.refusal(host, address, port)
            if refusal:
                raise httpcore.ConnectError(refusal)
            try:
                return self._plain.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError as error:
                reason = str(error)
        raise httpcore.ConnectError(f"cannot connect to {host}:{port}: {reason}")
