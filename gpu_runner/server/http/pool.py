"""Connections to one server: opened on demand or ahead, kept alive, handed out one request at a time."""

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from gpu_runner.server.http.connection import Connection
from scheduler_core.spec.addresses import Reach

CONNECT_TIMEOUT_S = 10.0


class ConnectError(Exception):
    """No connection could be had; the message says why."""


@dataclass(frozen=True)
class Origin:
    """One server: where it is, and how far it is trusted. ``ca_file`` replaces the system's authorities."""

    url: str
    reach: Reach = field(default_factory=Reach)
    verify_tls: bool = True
    ca_file: str | None = None

    @cached_property
    def host(self) -> str:
        """Host name or address."""
        return urlsplit(self.url).hostname or ""

    @cached_property
    def port(self) -> int:
        """Port, the scheme's own where none is written."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @cached_property
    def authority(self) -> str:
        """What goes into the Host header."""
        return urlsplit(self.url).netloc

    @cached_property
    def prefix(self) -> str:
        """Path that the server's own paths are added to."""
        return urlsplit(self.url).path.rstrip("/")

    def tls(self) -> ssl.SSLContext | None:
        """The TLS settings, None for plain http."""
        if urlsplit(self.url).scheme != "https":
            return None
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class Pool:
    """Connections to ``origin``, at most ``limit`` at once."""

    def __init__(self, origin: Origin, *, limit: int = 10_000) -> None:
        self.origin = origin
        self.limit = limit
        self.opened = 0
        self.peak = 0
        self._idle: list[Connection] = []
        self._busy = 0
        self._tls = origin.tls()
        self._addresses: list[str] = []

    @property
    def full(self) -> bool:
        """Whether no further request can be sent now."""
        return self._busy >= self.limit

    def idle(self) -> Connection | None:
        """A kept-alive connection, handed out; None when a new one has to be opened."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                self._took()
                return connection
        return None

    async def open(self) -> Connection:
        """A new connection, handed out.

        Raises:
            ConnectError: the address may not be reached, or nobody answers there.
        """
        connection = await self._connect()
        self._took()
        return connection

    def give_back(self, connection: Connection) -> None:
        """A request's connection is free again; one that cannot be reused is closed."""
        self._busy -= 1
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()

    async def warm(self, count: int) -> None:
        """Open ``count`` connections ahead, so that no request waits for one."""
        for start in range(0, count, 64):
            self._idle += await asyncio.gather(*(self._connect() for _ in range(start, min(start + 64, count))))

    def close(self) -> None:
        """End every idle connection."""
        while self._idle:
            self._idle.pop().close()

    def _took(self) -> None:
        self._busy += 1
        self.peak = max(self.peak, self._busy)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        reason = ""
        for address in self._addresses or await self._resolve(loop):
            refusal = self.origin.reach.refusal(self.origin.host, address, self.origin.port)
            if refusal:
                raise ConnectError(refusal)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, connection = await loop.create_connection(
                        Connection, address, self.origin.port, ssl=self._tls,
                        server_hostname=self.origin.host if self._tls else None,
                    )  # fmt: skip
            except ssl.SSLCertVerificationError as error:
                raise ConnectError(
                    f"{self.origin.host}: its certificate is not trusted: {error.verify_message}"
                ) from None
            except (OSError, TimeoutError) as error:
                reason = str(error) or f"no answer within {CONNECT_TIMEOUT_S:g} s"
                continue
            self._addresses = [address]
            self.opened += 1
            return connection
        raise ConnectError(f"cannot connect to {self.origin.authority}: {reason}")

    async def _resolve(self, loop: asyncio.AbstractEventLoop) -> list[str]:
        try:
            found = await loop.getaddrinfo(self.origin.host, self.origin.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectError(f"{self.origin.host} has no address: {error.strerror or error}") from None
        return list(dict.fromkeys(str(item[4][0]) for item in found))
