"""The live socket: nothing lost, nothing twice, nobody unknown."""

import asyncio
from typing import Any

import pytest
import redis.exceptions
from asgiref.sync import sync_to_async
from channels.layers import InMemoryChannelLayer, get_channel_layer
from django.db import OperationalError
from django.test import Client

from controlplane.accounts.models import User
from controlplane.live import consumers, protocol
from controlplane.live.consumers import LiveConsumer
from controlplane.live.groups import TICK, announce_run, run_group
from controlplane.live.protocol import Close
from controlplane.runs.models import Run
from tests.live.conftest import Socket, store_async

pytestmark = pytest.mark.asyncio


def tick(run: Run, seq: int) -> dict[str, Any]:
    return {"type": TICK, "topic": "run", "id": run.id, "attempt": 1, "seq": seq}


async def collect(socket: Socket, last: int) -> list[int]:
    """Sequence numbers received until ``last`` has come."""
    seen: list[int] = []
    while not seen or seen[-1] < last:
        seen += [item["seq"] for item in (await socket.next_run())["samples"]]
    return seen


async def test_it_sends_a_snapshot_and_then_what_is_new(open_socket: Any, run: Run) -> None:
    await store_async(run, 1, 3)
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": run.id})
    first = await socket.next_run()
    assert (first["mode"], first["attempt"], [item["seq"] for item in first["samples"]]) == ("snapshot", 1, [1, 2, 3])
    assert first["status"]["state"] == "running"
    await store_async(run, 4, 5)
    await sync_to_async(announce_run)(run.id, attempt=1, seq=5)
    second = await socket.next_run()
    assert (second["mode"], [item["seq"] for item in second["samples"]]) == ("delta", [4, 5])


async def test_it_resumes_after_the_clients_last_number(open_socket: Any, run: Run) -> None:
    await store_async(run, 1, 9)
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": run.id, "attempt": 1, "after": 6})
    message = await socket.next_run()
    assert (message["mode"], [item["seq"] for item in message["samples"]]) == ("delta", [7, 8, 9])


async def test_a_new_attempt_starts_over(open_socket: Any, run: Run) -> None:
    """The client's numbers belong to attempt 1; the run is in attempt 2, whose samples start from 1."""
    await store_async(run, 1, 9)
    await store_async(run, 1, 2, attempt=2)
    await Run.objects.filter(pk=run.id).aupdate(attempt=2)
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": run.id, "attempt": 1, "after": 9})
    message = await socket.next_run()
    assert (message["mode"], message["attempt"]) == ("snapshot", 2)
    assert [item["seq"] for item in message["samples"]] == [1, 2]


async def test_a_burst_of_ten_thousand_ticks_loses_nothing(open_socket: Any, run: Run) -> None:
    """The layer holds 100 messages and drops the rest, the newest first; the samples come from the database."""
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": run.id})
    await socket.next_run()
    layer = get_channel_layer()
    assert layer is not None
    for start in range(1, 10_001, 1000):
        await store_async(run, start, start + 999)
        for seq in range(start, start + 1000):
            await layer.group_send(run_group(run.id), tick(run, seq))
    assert await collect(socket, 10_000) == list(range(1, 10_001))


async def test_a_lost_tick_is_made_good(open_socket: Any, run: Run) -> None:
    """No tick at all is sent for samples 1 .. 4."""
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": run.id})
    await socket.next_run()
    await store_async(run, 1, 4)
    assert await collect(socket, 4) == [1, 2, 3, 4]


async def test_a_slow_reader_gets_few_large_batches(
    open_socket: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one send is blocked 300 chunks are stored and ticked; they arrive in one batch, not in 300."""
    gate = asyncio.Event()
    send = LiveConsumer._send

    async def gated(self: LiveConsumer, message: dict[str, Any]) -> None:
        await send(self, message)
        if message["type"] == "run":
            await gate.wait()

    monkeypatch.setattr(LiveConsumer, "_send", gated)
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": run.id})
    await socket.next_run()
    for seq in range(1, 301):
        await store_async(run, seq, seq)
        await sync_to_async(announce_run)(run.id, attempt=1, seq=seq)
    gate.set()
    message = await socket.next_run()
    assert [item["seq"] for item in message["samples"]] == list(range(1, 301))


async def test_a_reader_that_never_reads_is_closed(open_socket: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(self: LiveConsumer, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(protocol, "SEND_TIMEOUT_S", 0.05)
    socket = await open_socket()
    monkeypatch.setattr(LiveConsumer, "send", stuck)
    await socket.say({"type": "subscribe", "run": run.id})
    assert await socket.closed() == Close.TOO_SLOW


@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://evil.example", "https://testserver", "http://testserver:8001", "http://testserver.evil"],
)
async def test_a_foreign_origin_is_refused(browser: Client, origin: str | None) -> None:
    """Another host, scheme or port, and no origin at all: the handshake itself fails."""
    socket = Socket(browser, origin=origin)
    assert not await socket.connect()


async def test_a_rebound_host_is_refused(browser: Client, settings: Any) -> None:
    """Origin and Host agree, but the host is not ours."""
    settings.ALLOWED_HOSTS = ["headway.example"]
    assert not await Socket(browser).connect()


async def test_configured_origins_are_the_whole_list(browser: Client, settings: Any) -> None:
    settings.ORIGINS = ["https://headway.example:8443"]
    assert not await Socket(browser).connect()
    socket = Socket(browser, origin="https://headway.example:8443")
    assert await socket.connect()
    await socket.disconnect()


async def test_an_anonymous_visitor_is_told_to_sign_in(run: Run) -> None:
    socket = Socket(None)
    assert await socket.connect()
    assert await socket.closed() == Close.SIGNED_OUT


async def test_signing_out_closes_the_socket_but_not_another_sessions(
    open_socket: Any, browser: Client, ada: User
) -> None:
    other = Client()
    await sync_to_async(other.force_login)(ada)
    mine, others = await open_socket(), await open_socket(other)
    await sync_to_async(browser.post)("/logout/")
    assert await mine.closed() == Close.SIGNED_OUT
    await others.say({"type": "ping"})
    assert (await others.next())["type"] == "pong"


async def test_a_deactivated_account_is_closed_at_the_next_check(
    open_socket: Any, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "RECHECK_S", 0.05)
    socket = await open_socket()
    await User.objects.filter(pk=ada.pk).aupdate(is_active=False)
    assert await socket.closed() == Close.SIGNED_OUT


async def test_an_unknown_run_is_said_and_the_socket_stays(open_socket: Any, run: Run) -> None:
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": "run_2222222222222222"})
    assert (await socket.next())["code"] == "unknown"
    await socket.say({"type": "subscribe", "run": run.id})
    assert (await socket.next_run())["run"] == run.id


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"type": "launch"}',
        '{"type": "subscribe"}',
        '{"type": "subscribe", "run": "../../etc"}',
        '{"type": "subscribe", "run": "run_2222222222222222", "after": -1}',
        '{"type": "ping", "more": 1}',
        '{"type": "ping", "pad": "' + "x" * 5000 + '"}',
    ],
)
async def test_a_malformed_message_closes(open_socket: Any, text: str) -> None:
    socket = await open_socket()
    await socket.say(text)
    assert await socket.closed() == Close.BAD_MESSAGE


async def test_too_many_messages_close(open_socket: Any) -> None:
    socket = await open_socket()
    for _ in range(protocol.MAX_MESSAGES + 1):
        await socket.say({"type": "ping"})
    assert await socket.closed() == Close.TOO_MANY


async def test_too_many_sockets_of_one_person_close(open_socket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_SOCKETS_PER_USER", 2)
    first, _ = await open_socket(), await open_socket()
    third = await open_socket()
    assert await third.closed() == Close.TOO_MANY
    await first.disconnect()
    await (await open_socket()).say({"type": "ping"})


async def test_an_unknown_topic_is_ignored(open_socket: Any, run: Run) -> None:
    """A server of a later version may tick for something this one does not know."""
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": run.id})
    await socket.next_run()
    layer = get_channel_layer()
    assert layer is not None
    await layer.group_send(run_group(run.id), {"type": TICK, "topic": "weather", "id": "x"})
    await socket.say({"type": "ping"})
    assert (await socket.next())["type"] == "pong"


async def test_the_end_of_a_run_is_told_once(open_socket: Any, run: Run) -> None:
    await store_async(run, 1, 2)
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": run.id})
    await socket.next_run()
    await Run.objects.filter(pk=run.id).aupdate(state="succeeded", reason="served all")
    message = await socket.next_run()
    assert message["status"]["ended"] and message["samples"] == []
    assert await socket.receive_nothing(timeout=0.5)


async def test_a_layer_that_fails_closes_with_a_code_and_gives_the_place_back(
    open_socket: Any, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page can tell that it should come back, and coming back a hundred times does not use up its places."""

    async def broken(self: InMemoryChannelLayer, channel: str) -> None:
        raise redis.exceptions.TimeoutError("no answer")

    monkeypatch.setattr(InMemoryChannelLayer, "receive", broken)
    for _ in range(protocol.MAX_SOCKETS_PER_USER + 1):
        socket = await open_socket()
        assert await socket.closed() == Close.TRY_AGAIN
        await socket.wait(3)
    assert consumers._open_sockets[ada.pk] == 0


async def test_a_database_that_fails_closes_with_a_code(
    open_socket: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pump that died in silence would leave a socket that looks alive and never speaks."""

    def broken(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("locked")

    monkeypatch.setattr("controlplane.live.snapshots.run_message", broken)
    socket = await open_socket()
    await socket.say({"type": "subscribe", "run": run.id})
    assert await socket.closed() == Close.TRY_AGAIN
