"""One process of the load client: an event loop that plays its part of the plan, and a pipe to the run."""

import asyncio
import gc
import logging
import pickle
import queue
import sys
import threading
from multiprocessing.connection import Connection

from gpu_runner.server.client.events import Clock, Event, Failed
from gpu_runner.server.client.player import Player
from gpu_runner.server.client.realtime import ask_for_real_time
from gpu_runner.server.client.shardplan import ShardPlan
from gpu_runner.server.http.loop import run
from scheduler_core.types.errors import HeadwayError

log = logging.getLogger(__name__)

READY = "ready"
SWITCH_S = 0.0005  # by default the thread that tells may hold up the one that sends for 5 ms
COLLECT_AFTER = (20_000, 50, 1_000)  # a request that is over leaves no cycles; a collection is a late send


def shard_main(pipe: Connection) -> None:
    """Take a `ShardPlan`, warm up, say ready, take the clock, play; a text that comes then is the reason to stop.

    Once warm it runs in real time where that is allowed. Everything told goes through a thread, so that a run that is
    slow to listen never delays a send.
    """
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    plan: ShardPlan = pipe.recv()
    teller = threading.Thread(target=_tell, args=(pipe, outgoing), name="shard-teller", daemon=True)
    teller.start()
    sys.setswitchinterval(SWITCH_S)
    try:
        run(_play(plan, pipe, outgoing))
    except HeadwayError as error:
        outgoing.put(pickle.dumps([Failed(str(error))]))
    except Exception as error:  # the process boundary: the run names it as its reason
        log.exception("a shard of the load client failed")
        outgoing.put(pickle.dumps([Failed(f"internal fault: {type(error).__name__}: {error}")]))
    outgoing.put(None)
    teller.join()


async def _play(plan: ShardPlan, pipe: Connection, outgoing: "queue.SimpleQueue[bytes | None]") -> None:
    loop = asyncio.get_running_loop()

    def tell(events: list[Event]) -> None:
        outgoing.put(pickle.dumps(events))  # here: the thread would hold the interpreter while it is not scheduled

    player = Player(plan, tell)
    await player.warm_up()
    gc.collect()
    gc.freeze()  # what was built so far lives as long as the run
    gc.set_threshold(*COLLECT_AFTER)
    ask_for_real_time()  # only now: to make requests ahead takes long, and need not come before what others do
    outgoing.put(pickle.dumps(READY))
    clock: Clock = await loop.run_in_executor(None, pipe.recv)
    listener = threading.Thread(target=_listen, args=(pipe, loop, player), name="shard-listener", daemon=True)
    listener.start()
    await player.play(clock)


def _listen(pipe: Connection, loop: asyncio.AbstractEventLoop, player: Player) -> None:
    try:
        reason = pipe.recv()
    except (EOFError, OSError):
        reason = "the run that this client belonged to ended"
    try:
        loop.call_soon_threadsafe(player.stop, reason)
    except RuntimeError:
        return  # the loop is closed: everything was played


def _tell(pipe: Connection, outgoing: "queue.SimpleQueue[bytes | None]") -> None:
    try:
        while (told := outgoing.get()) is not None:
            pipe.send_bytes(told)
    except (BrokenPipeError, OSError):
        return  # nobody listens any more; the listener stops the player
    finally:
        pipe.close()
