"""The live socket: one per page, many subscriptions.

Ticks only mark a subscription's slot as dirty, so handlers never wait. One pump task per socket reads what the client
lacks from the database, sends it as one batch and waits for the send: a slow viewer gets fewer, larger batches, and
one that does not read at all is closed with `Close.TOO_SLOW` and resumes later from its last number.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter, deque
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from pydantic import ValidationError
from redis.exceptions import RedisError

from controlplane.accounts.models import User
from controlplane.live import protocol
from controlplane.live.groups import session_mark, user_group
from controlplane.live.protocol import INBOUND, Close, Ping, Subscribe, Unsubscribe
from controlplane.live.sessions import live_user
from controlplane.live.subscriptions import ExperimentSubscription, RunSubscription, Subscription

log = logging.getLogger(__name__)

_open_sockets: Counter[int] = Counter()


class LiveConsumer(AsyncWebsocketConsumer):
    """Follows runs and experiments for one page."""

    user: User | None = None
    pump: asyncio.Task[None] | None = None
    leaving = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one socket; a channel layer that fails closes it with a code, so that the page comes back."""
        try:
            await super().__call__(scope, receive, send)
        except (RedisError, OSError) as error:
            log.warning("a live socket is closed, the channel layer does not answer: %s", error)
            with contextlib.suppress(RuntimeError, OSError):
                await self.close(Close.TRY_AGAIN)
        finally:
            await self._give_back()

    async def connect(self) -> None:
        """Accept first, so that the browser can read why it is closed; then admit, or close with a code."""
        self.subscriptions: dict[str, Subscription] = {}
        self.received: deque[float] = deque(maxlen=protocol.MAX_MESSAGES)
        self.wake = asyncio.Event()
        await self.accept()
        user = await self._session_user()
        if user is None:
            await self._leave(Close.SIGNED_OUT)
            return
        if _open_sockets[user.pk] >= protocol.MAX_SOCKETS_PER_USER:
            await self._leave(Close.TOO_MANY)
            return
        self.user = user
        _open_sockets[user.pk] += 1
        await self.channel_layer.group_add(user_group(user.pk), self.channel_name)
        self.pump = asyncio.create_task(self._pump())

    async def _give_back(self) -> None:
        """End the pump, give back the place, leave every group; however the socket ended."""
        if self.pump is not None:
            self.pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.pump
        if self.user is None:
            return
        _open_sockets[self.user.pk] -= 1
        with contextlib.suppress(RedisError, OSError):  # memberships also lapse by themselves
            for group in [user_group(self.user.pk), *(item.group for item in self.subscriptions.values())]:
                await self.channel_layer.group_discard(group, self.channel_name)

    # --- from the client -------------------------------------------------------------------------------------------

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Check size, rate and shape of an inbound frame, then act on it."""
        if self.user is None or self.leaving:
            return
        if self._is_too_fast():
            await self._leave(Close.TOO_MANY)
            return
        try:
            if text_data is None or len(text_data.encode()) > protocol.MAX_MESSAGE_BYTES:
                raise ValueError("too long, or not text")
            message = INBOUND.validate_json(text_data)
        except (ValidationError, ValueError):
            await self._leave(Close.BAD_MESSAGE)
            return
        if isinstance(message, Ping):
            await self._send({"type": "pong"})
        elif isinstance(message, Subscribe):
            await self._subscribe(message)
        else:
            await self._unsubscribe(message)

    def _is_too_fast(self) -> bool:
        now = time.monotonic()
        full = len(self.received) == protocol.MAX_MESSAGES
        too_fast = full and now - self.received[0] < protocol.MESSAGES_WINDOW_S
        self.received.append(now)
        return too_fast

    async def _subscribe(self, message: Subscribe) -> None:
        key = message.run or message.experiment or ""
        if key not in self.subscriptions and len(self.subscriptions) >= protocol.MAX_SUBSCRIPTIONS:
            await self._send({"type": "error", "code": "too_many", "message": "too many subscriptions on one page"})
            return
        item: Subscription
        if message.run is not None:
            item = RunSubscription(message.run, message.attempt, message.after)
        else:
            item = ExperimentSubscription(key)
        # Join before the first read: what is stored between the two is then announced, not missed.
        await self.channel_layer.group_add(item.group, self.channel_name)
        self.subscriptions[key] = item
        self.wake.set()

    async def _unsubscribe(self, message: Unsubscribe) -> None:
        item = self.subscriptions.pop(message.run or message.experiment or "", None)
        if item is not None:
            await self.channel_layer.group_discard(item.group, self.channel_name)

    # --- from the channel layer ------------------------------------------------------------------------------------

    async def live_tick(self, event: dict[str, Any]) -> None:
        """Mark the slot; the pump does the rest. A tick of a topic this version does not know is ignored."""
        if event.get("topic") == "signed_out":
            if event.get("session") == session_mark(self._session_key() or ""):
                await self._leave(Close.SIGNED_OUT)
            return
        item = self.subscriptions.get(str(event.get("id")))
        if item is not None:
            item.dirty = True
            self.wake.set()

    # --- the pump --------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        """Send what is due until the socket closes; the first failed or slow send ends it."""
        due = _Timers()
        try:
            while not self.leaving:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.wake.wait(), protocol.REFRESH_S)
                self.wake.clear()
                await self._keep_up(due)
                for key, item in list(self.subscriptions.items()):
                    if item.dirty and self.subscriptions.get(key) is item and not self.leaving:
                        await self._advance(key, item)
                await asyncio.sleep(protocol.PAUSE_S)
        except TimeoutError:
            await self._leave(Close.TOO_SLOW)
        except Exception:  # a deaf socket would look alive: the page must come back to a new one
            log.exception("the pump of a live socket failed")
            await self._leave(Close.TRY_AGAIN)

    async def _keep_up(self, due: "_Timers") -> None:
        """Periodic duties: beat, re-check of the session, re-join of groups, and a look for lost ticks."""
        if due.passed("refresh", protocol.REFRESH_S):
            for item in self.subscriptions.values():
                item.dirty = item.dirty or not item.ended
        if due.passed("beat", protocol.BEAT_S):
            await self._send({"type": "beat"})
        if due.passed("recheck", protocol.RECHECK_S):
            await self._recheck()
        if due.passed("rejoin", protocol.REJOIN_S):
            for group in [user_group(self._known_user().pk), *(item.group for item in self.subscriptions.values())]:
                await self.channel_layer.group_add(group, self.channel_name)

    async def _advance(self, key: str, item: Subscription) -> None:
        """Read and send one batch of a subscription."""
        item.dirty = False
        message = await database_sync_to_async(item.read)(self._known_user())
        if message is None:
            self.subscriptions.pop(key, None)
            await self.channel_layer.group_discard(item.group, self.channel_name)
            await self._send(item.missing())
            return
        if item.is_news(message):
            await self._send(message)
        item.sent(message)
        if item.dirty:
            self.wake.set()

    async def _recheck(self) -> None:
        user = await self._session_user()
        if user is None or user != self.user:
            await self._leave(Close.SIGNED_OUT)
        else:
            self.user = user

    async def _session_user(self) -> User | None:
        return await database_sync_to_async(live_user)(self._session_key())

    def _session_key(self) -> str | None:
        return getattr(self.scope.get("session"), "session_key", None)

    async def _leave(self, code: Close) -> None:
        """Close with a code; nothing is sent after it."""
        self.leaving = True
        await self.close(code)

    def _known_user(self) -> User:
        assert self.user is not None  # the pump starts only for a known user
        return self.user

    async def _send(self, message: dict[str, Any]) -> None:
        await asyncio.wait_for(self.send(json.dumps(message, separators=(",", ":"))), protocol.SEND_TIMEOUT_S)


class _Timers:
    """When each periodic duty was last done."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def passed(self, name: str, every_s: float) -> bool:
        """Whether ``every_s`` have passed since this last answered yes (or since it was first asked)."""
        now = time.monotonic()
        if now - self._last.setdefault(name, now) < every_s:
            return False
        self._last[name] = now
        return True
