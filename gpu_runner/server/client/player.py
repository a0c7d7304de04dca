"""Plays one shard of an arrival plan on an event loop: sends on time, takes what comes, tells what happened."""

import asyncio
import contextlib
import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpu_runner.server.client.agenda import SendAgenda
from gpu_runner.server.client.effort import LoopWatch
from gpu_runner.server.client.events import Chunks, Clock, Due, Effort, Event, Over, Wrote
from gpu_runner.server.client.exchange import Ending, Exchange
from gpu_runner.server.client.outbox import AHEAD, Outbox
from gpu_runner.server.client.prompts import Said
from gpu_runner.server.client.shardplan import ShardPlan, next_turn
from gpu_runner.server.http.connection import Connection
from gpu_runner.server.http.pool import ConnectError, Pool
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import NS_PER_MS, NS_PER_S, Ns

TELL_EVERY_S = 0.05
AT_ONCE = 4


@dataclass(slots=True)
class _Open:
    """A request between its intended send time and its end."""

    planned: PlannedRequest
    data: bytes
    said: Said
    tries: int = 0
    connection: Connection | None = None
    exchange: Exchange | None = None
    chunks: list[int] = field(default_factory=list)
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    reused: bool = False
    keep_answer: bool = False
    retried_reset: bool = False


class Player:
    """Plays a `ShardPlan`; ``tell`` gets `Event`s in batches, the `Effort` last."""

    def __init__(self, plan: ShardPlan, tell: Callable[[list[Event]], None]) -> None:
        self._plan = plan
        self._clock, self._zero_ns = Clock(0), 0
        self._tell = tell
        self._agenda = SendAgenda(plan.requests)
        self._outbox = Outbox(plan, self._agenda.in_order())
        self._pool = Pool(plan.origin, limit=plan.client.connections)
        self._watch = LoopWatch()
        self._open: dict[int, _Open] = {}
        self._held: deque[_Open] = deque()
        self._events: list[Event] = []
        self._rows = array("q")
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts = dict.fromkeys(("reconnects", "retries", "held_back", "fed_back", "not_fed_back"), 0)

    async def warm_up(self) -> None:
        """Open connections and make requests ahead, so that the first sends are no later than the others."""
        self._outbox.make(AHEAD, -1)
        with contextlib.suppress(ConnectError):  # each request then says so for itself
            await self._pool.warm(self._plan.warm)

    async def play(self, clock: Clock) -> None:
        """Send everything and wait for its end, or for `stop`."""
        self._clock, self._zero_ns = clock, clock.zero_ns
        self._watch.start()
        teller = asyncio.create_task(self._keep_telling())
        maker = asyncio.create_task(self._make_ahead())
        try:
            await self._send_all()
        finally:
            for task in (teller, maker, *self._tasks):
                task.cancel()
            self._watch.stop()
            self._flush()
            self._tell([self._effort()])
            self._pool.close()

    def stop(self, reason: str) -> None:
        """End everything that is open and send nothing more."""
        self._stopping = reason
        self._over.set()

    def _now(self) -> Ns:
        return self._clock.of(time.monotonic_ns())

    # --- sending ------------------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        self._tick()
        await self._over.wait()
        if self._timer is not None:
            self._timer.cancel()
        for item in list(self._open.values()):
            self._leave(item, Outcome.CANCELLED, self._stopping)

    def _tick(self) -> None:
        """Send what is due, and come back when the next is; libuv counts whole milliseconds, so round up."""
        now = self._now()
        for at, request in self._agenda.due(now):
            self._begin(at, request)
        due = self._agenda.next_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            wait_ms = math.ceil((due - self._now()) / NS_PER_MS)
            self._timer = asyncio.get_running_loop().call_later(max(0, wait_ms) / 1e3, self._tick)
        elif not self._agenda.left and not self._open:
            self._over.set()

    def _begin(self, at_ns: Ns, request: PlannedRequest) -> None:
        data, said = self._outbox.take(request)
        item = _Open(request, data, said, keep_answer=self._keeps_answer(request))
        self._open[request.index] = item
        now = max(at_ns, self._now())
        self._events.append(Due(request.index, at_ns, now))
        loop, client = asyncio.get_running_loop(), self._plan.client
        late_s = (now - at_ns) / NS_PER_S
        limit_s = min(client.timeout_s, self._plan.limits_ms.get(request.tier, math.inf) / 1e3)
        item.timers.append(loop.call_later(max(0.0, limit_s - late_s), self._timed_out, item, limit_s))
        if request.cancel_ns is not None:
            item.timers.append(loop.call_later(max(0.0, request.cancel_ns / NS_PER_S - late_s), self._gave_up, item))
        self._try(item)

    def _try(self, item: _Open) -> None:
        """Send on a kept-alive connection, open one, or wait for one where the limit is reached."""
        if item.planned.index not in self._open:
            return
        connection = self._pool.idle()
        if connection is not None:
            item.reused = True
            self._write(item, connection, 0)
        elif self._pool.full:
            self._counts["held_back"] += 1
            self._held.append(item)
        else:
            self._spawn(self._connect(item))

    async def _connect(self, item: _Open) -> None:
        began = time.monotonic_ns()
        try:
            connection = await self._pool.open()
        except ConnectError as error:
            ending = Ending(Outcome.FAILED, "connect", str(error), again=True)
            self._ended(item, ending, time.monotonic_ns())
            return
        if item.planned.index not in self._open:
            self._pool.give_back(connection)
            return
        item.reused = False
        self._write(item, connection, time.monotonic_ns() - began)

    def _write(self, item: _Open, connection: Connection, connect_ns: Ns) -> None:
        item.connection = connection
        item.chunks = []
        item.exchange = Exchange(partial(self._chunk, item), partial(self._ended, item), keep_answer=item.keep_answer)
        item.tries += 1
        at = connection.send(item.data, item.exchange)
        self._events.append(Wrote(item.planned.index, self._clock.of(at), item.tries, connect_ns))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- receiving ----------------------------------------------------------------------------------------------

    def _chunk(self, item: _Open, at: int, tokens: int) -> None:
        item.chunks.append(tokens)
        self._rows.extend((item.planned.index, at - self._zero_ns, tokens))

    def _ended(self, item: _Open, ending: Ending, at: int) -> None:
        if item.planned.index not in self._open:
            return
        connection, item.connection = item.connection, None
        silent_close = connection is not None and item.reused and not connection.got_bytes
        if connection is not None:
            self._pool.give_back(connection)
        if silent_close and ending.stage == "answer" and not item.retried_reset:
            # The server closed the kept-alive connection just as it was used again: no try was lost, ours or its.
            item.retried_reset = True
            item.tries -= 1
            self._counts["reconnects"] += 1
            self._try(item)
        elif ending.again and item.tries <= self._plan.client.retry.tries:
            self._again(item, ending)
        else:
            self._close(item, ending, at)
        self._use_free_connection()

    def _again(self, item: _Open, ending: Ending) -> None:
        retry = self._plan.client.retry
        self._counts["retries"] += 1
        wait_s = retry.wait_ms / 1e3 * retry.factor ** (item.tries - 1)
        wait_s = ending.after_s if ending.after_s is not None else wait_s
        item.tries += ending.stage == "connect"  # nothing was written, but it was a try
        item.timers.append(asyncio.get_running_loop().call_later(wait_s, self._try, item))

    def _close(self, item: _Open, ending: Ending, at: int) -> None:
        request, heard = item.planned, item.exchange.heard if item.exchange is not None else None
        del self._open[request.index]
        for timer in item.timers:
            timer.cancel()
        counted = sum(item.chunks)
        tokens = counted
        counts = None
        if heard is not None and ending.outcome is Outcome.FINISHED and heard.declared not in (None, counted):
            assert heard.declared is not None
            counts = _spread(heard.declared, item.chunks)
            tokens = sum(counts)
        at_ns = self._clock.of(at)
        self._flush_rows()
        self._events.append(_over(item, ending, at_ns, tokens, counts))
        self._remember(item, ending)
        item.exchange = None  # it knows this item: left in place, only the garbage collector could free the two
        released = self._agenda.ended(request.index, at_ns)
        self._outbox.released(released)
        if released or not (self._agenda.left or self._open):
            self._tick()

    def _remember(self, item: _Open, ending: Ending) -> None:
        """Keep what was said for the next turn; the answer too where the server gave it in a usable form."""
        index = item.planned.index
        self._outbox.forget(index)
        turns = [later for later in self._agenda.waits_for(index) if next_turn(item.planned, later)]
        if not turns or not self._plan.feed_back:
            return
        heard = item.exchange.heard if item.exchange is not None else None
        answered = heard is not None and ending.outcome is Outcome.FINISHED
        by_text = item.said.ids is None
        known = heard is not None and (by_text or len(heard.token_ids) == (heard.declared or heard.tokens))
        self._counts["fed_back" if answered and known else "not_fed_back"] += len(turns)
        if heard is not None and answered and known:
            said = self._outbox.writer.answered(item.said, heard.token_ids, "".join(heard.text))
            for later in turns:
                self._outbox.follows(later.index, said)

    def _use_free_connection(self) -> None:
        while self._held and not self._pool.full:
            item = self._held.popleft()
            if item.planned.index in self._open:
                self._try(item)

    # --- leaving ------------------------------------------------------------------------------------------------

    def _timed_out(self, item: _Open, limit_s: float) -> None:
        self._leave(item, Outcome.TIMED_OUT, f"no end within {limit_s:g} s")

    def _gave_up(self, item: _Open) -> None:
        self._leave(item, Outcome.CANCELLED, "its client gave up")

    def _leave(self, item: _Open, outcome: Outcome, reason: str) -> None:
        if item.planned.index not in self._open:
            return
        stage = "send" if item.exchange is None else "stream" if item.exchange.first else "first_token"
        if item.exchange is not None:
            item.exchange.over = True
        if item.connection is not None:
            item.connection.close()
            self._pool.give_back(item.connection)
            item.connection = None
        self._close(item, Ending(outcome, stage, reason), time.monotonic_ns())
        self._use_free_connection()

    # --- making -------------------------------------------------------------------------------------------------

    def _keeps_answer(self, request: PlannedRequest) -> bool:
        waiting = self._agenda.waits_for(request.index)
        return bool(waiting) and self._plan.feed_back and any(next_turn(request, later) for later in waiting)

    async def _make_ahead(self) -> None:
        """Make what is due next while there is time, a few at once so that making delays no send."""
        while True:
            await asyncio.sleep(0 if self._outbox.make(AT_ONCE, self._now()) else 0.02)

    # --- telling ------------------------------------------------------------------------------------------------

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            self._flush()

    def _flush_rows(self) -> None:
        if self._rows:
            self._events.append(Chunks(self._rows))
            self._rows = array("q")

    def _flush(self) -> None:
        self._flush_rows()
        if self._events:
            self._tell(self._events)
            self._events = []

    def _effort(self) -> Effort:
        watch, counts = self._watch, self._counts
        return Effort(
            watch.cpu_s, watch.wall_s, watch.busiest_share, watch.lag_ns(0.99), watch.lag_ns(1.0), self._pool.peak,
            self._pool.opened, counts["reconnects"], counts["retries"], counts["held_back"], counts["fed_back"],
            counts["not_fed_back"], watch.real_time,
        )  # fmt: skip


def _over(item: _Open, ending: Ending, at_ns: Ns, tokens: int, counts: list[int] | None) -> Over:
    """What there is to tell of a request that is over."""
    told = (item.planned.index, at_ns, ending.outcome.value, ending.stage, ending.reason, tokens, counts)
    if item.exchange is None:
        return Over(*told)
    heard = item.exchange.heard
    queue_ns = None if heard.queue_ms is None else round(heard.queue_ms * NS_PER_MS)
    said = (heard.prompt_tokens, heard.cached_tokens, queue_ns, item.exchange.comments, heard.empty, heard.done)
    return Over(*told, *said)


def _spread(total: int, chunks: list[int]) -> list[int]:
    """``total`` tokens over chunks in proportion to what each was counted to carry; the last one takes the rest."""
    if not chunks:
        return []
    counted = sum(chunks) or 1
    spread = [max(1, count * total // counted) for count in chunks[:-1]]
    return [*spread, max(1, total - sum(spread))]
