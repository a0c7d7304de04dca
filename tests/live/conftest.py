"""People, a run with stored samples, and sockets as a browser would open them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.test import Client

from controlplane.accounts.models import User
from controlplane.asgi import application
from controlplane.evidence.models import SampleChunk
from controlplane.live import consumers
from controlplane.runs.models import Run

WAIT_S = 20.0  # far beyond what is needed, for machines that do other things too


def sample(seq: int, **values: Any) -> dict[str, Any]:
    """A stored sample; its figures are functions of its number, so that any of them can be recognised."""
    return {"seq": seq, "t_s": seq / 5, "waiting": seq % 7, "running": seq % 5, "ttft_p50_ms": None, **values}


def store(run: Run, first: int, last: int, attempt: int = 1) -> None:
    """Store samples ``first .. last`` as one chunk."""
    SampleChunk.objects.create(
        run=run, attempt=attempt, first_seq=first, last_seq=last, samples=[sample(n) for n in range(first, last + 1)]
    )


@pytest.fixture
def ada(transactional_db: None) -> User:
    return User.objects.create_user("ada", password="a long password")


@pytest.fixture
def run(ada: User) -> Run:
    return Run.objects.create(owner=ada, title="probe", job={}, state="running", total=100, done=10)


Communicator: Any = ApplicationCommunicator  # asgiref does not type its testing part


class Socket(Communicator):  # type: ignore[misc]
    """A WebSocket with the cookie of a signed-in browser, spoken to in ASGI events."""

    def __init__(self, client: Client | None, origin: str | None = "http://testserver") -> None:
        headers = [(b"host", b"testserver")]
        if origin is not None:
            headers.append((b"origin", origin.encode()))
        if client is not None and "sessionid" in client.cookies:
            headers.append((b"cookie", f"sessionid={client.cookies['sessionid'].value}".encode()))
        scope = {"type": "websocket", "path": "/live/", "query_string": b"", "headers": headers, "subprotocols": []}
        super().__init__(application, scope)

    async def connect(self) -> bool:
        """Whether the handshake was accepted."""
        await self.send_input({"type": "websocket.connect"})
        event = await self.receive_output(WAIT_S)
        return bool(event["type"] == "websocket.accept")

    async def say(self, message: dict[str, Any] | str) -> None:
        """Send a message, or a raw text."""
        text = message if isinstance(message, str) else json.dumps(message)
        await self.send_input({"type": "websocket.receive", "text": text})

    async def disconnect(self) -> None:
        """Go away as a browser does."""
        await self.send_input({"type": "websocket.disconnect", "code": 1001})
        await self.wait(WAIT_S)

    async def next(self, timeout: float = WAIT_S) -> dict[str, Any]:
        """The next message."""
        event = await self.receive_output(timeout)
        assert event["type"] == "websocket.send", event
        message: dict[str, Any] = json.loads(event["text"])
        return message

    async def next_run(self, timeout: float = WAIT_S) -> dict[str, Any]:
        """The next message about a run."""
        while (message := await self.next(timeout))["type"] != "run":
            pass
        return message

    async def closed(self, timeout: float = WAIT_S) -> int:
        """Code with which the server closes."""
        async with asyncio.timeout(timeout):
            while (event := await self.receive_output(timeout))["type"] != "websocket.close":
                json.loads(event["text"])
        return int(event["code"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Short waits, so that a test takes a moment; a count of open sockets that starts at none."""
    monkeypatch.setattr("controlplane.live.protocol.PAUSE_S", 0.01)
    monkeypatch.setattr("controlplane.live.protocol.REFRESH_S", 0.2)
    consumers._open_sockets.clear()
    settings.ALLOWED_HOSTS = ["testserver"]


@pytest.fixture
def browser(ada: User) -> Client:
    client = Client()
    client.force_login(ada)
    return client


@pytest.fixture
async def open_socket(browser: Client) -> AsyncIterator[Callable[..., Any]]:
    """Opens a signed-in socket; all are closed at the end."""
    opened: list[Socket] = []

    async def open_one(client: Client | None = None) -> Socket:
        socket = Socket(client or browser)
        assert await socket.connect()
        opened.append(socket)
        return socket

    yield open_one
    for socket in opened:
        # After a wait that timed out the socket's task is cancelled already. Let out of a teardown, that would keep
        # pytest from undoing fixtures of every later test.
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            await socket.disconnect()


store_async = sync_to_async(store)
