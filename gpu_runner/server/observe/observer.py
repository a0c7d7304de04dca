"""Looks at every source of a deployment in turn, from a thread of its own beside the run."""

import asyncio
import queue
import threading
import time
from collections.abc import Sequence

from gpu_runner.server.client.events import Clock
from gpu_runner.server.observe.source import Source
from scheduler_core.types.client_records import Observed

SETTLE_S = 0.5  # servers publish what a request left behind some time after its last token


class Observer:
    """Starts looking when started; `taken` hands over what was seen. Stopping makes one last look after `SETTLE_S`."""

    def __init__(self, sources: Sequence[Source], *, every_ms: float) -> None:
        self._sources = sources
        self._every_s = every_ms / 1e3
        self._seen: queue.SimpleQueue[Observed] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, clock: Clock) -> None:
        """Begin to look."""
        if self._sources:
            self._thread = threading.Thread(target=self._run, args=(clock,), name="observer", daemon=True)
            self._thread.start()

    def taken(self) -> list[Observed]:
        """What was seen since the last call, in order."""
        found = []
        while True:
            try:
                found.append(self._seen.get_nowait())
            except queue.Empty:
                return found

    def stop(self) -> list[Observed]:
        """Make a last look at every source, and hand over what was not yet taken."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
        return self.taken()

    def _run(self, clock: Clock) -> None:
        asyncio.run(self._look(clock))

    async def _look(self, clock: Clock) -> None:
        while True:
            last = self._stopping.is_set()
            if last:
                await asyncio.sleep(SETTLE_S)
            began = time.monotonic()
            for seen in await asyncio.gather(*(source.look(clock) for source in self._sources)):
                self._seen.put(seen)
            if last:
                break
            wait_s = max(0.0, began + self._every_s - time.monotonic())
            await asyncio.to_thread(self._stopping.wait, wait_s)
        for source in self._sources:
            source.close()
