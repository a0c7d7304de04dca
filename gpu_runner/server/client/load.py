"""A plan over several client processes, and what they tell as one stream of events."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe, wait

from gpu_runner.server.client.events import Clock, Event
from gpu_runner.server.client.shard import READY
from gpu_runner.server.client.shardplan import ShardPlan
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import ExecutorError

HEAD_START_NS = 300_000_000
LOOK_EVERY_S = 0.1
STOP_GRACE_S = 10.0


class Load:
    """Starts the processes, gives them one clock, and yields what they tell until the last has ended."""

    def __init__(self, plan: ShardPlan, processes: int) -> None:
        self._parts = [replace(plan, requests=part) for part in split(plan.requests, processes)]
        share = -(-plan.warm // max(1, len(self._parts)))
        self._parts = [replace(part, warm=min(share, len(part.requests))) for part in self._parts]
        self._pipes: list[Connection] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self.clock = Clock(0)

    def open(self) -> None:
        """Start every process and wait until it holds its part of the plan."""
        for part in self._parts:
            pipe, worker = _start()
            self._pipes.append(pipe)
            self._workers.append(worker)
            pipe.send(part)
        for pipe in self._pipes:
            try:
                said = pipe.recv()
            except EOFError:
                raise ExecutorError("the load client failed to start: its process ended") from None
            if said != READY:
                raise ExecutorError(f"the load client failed to start: {said[-1].reason}")

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        return [worker.pid for worker in self._workers]

    def start(self) -> Clock:
        """Set the run's clock; it reaches 0 in a moment, when every process is ready to send."""
        self.clock = Clock(time.monotonic_ns() + HEAD_START_NS)
        for pipe in self._pipes:
            pipe.send(self.clock)
        return self.clock

    def events(self, stop: Callable[[], bool], idle: Callable[[], None]) -> Iterator[Event]:
        """Events in the order in which the processes told them; ``idle`` is called at least every `LOOK_EVERY_S`.

        Once ``stop`` says so the processes are told, and what they still say is yielded.

        Raises:
            ExecutorError: a process ended without having said that it was done.
        """
        listening = dict(zip(self._pipes, self._workers, strict=True))
        kill_at = float("inf")
        while listening:
            for pipe in wait(list(listening), LOOK_EVERY_S):
                assert isinstance(pipe, Connection)
                try:
                    yield from pipe.recv()
                except EOFError:
                    self._ended(listening.pop(pipe))
            idle()
            if kill_at == float("inf") and stop():
                kill_at = time.monotonic() + STOP_GRACE_S
                self._tell_stop(list(listening))
            if time.monotonic() > kill_at:
                raise ExecutorError(f"the load client did not stop within {STOP_GRACE_S:g} s")

    def close(self) -> None:
        """End what is left of the processes."""
        for worker in self._workers:
            try:
                worker.wait(timeout=1)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        for pipe in self._pipes:
            pipe.close()

    def _tell_stop(self, pipes: Sequence[Connection]) -> None:
        for pipe in pipes:
            try:
                pipe.send("stopped")
            except OSError:
                continue  # it has just ended

    def _ended(self, worker: "subprocess.Popen[bytes]") -> None:
        try:
            status = worker.wait(timeout=STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            return  # it has told everything; `close` ends it
        if status:
            raise ExecutorError(f"a process of the load client ended with status {status}")


def _start() -> "tuple[Connection, subprocess.Popen[bytes]]":
    """A process and the pipe to it. One of `multiprocessing` would import the main module of the run first, which
    takes longer than all that a client needs.
    """
    ours, theirs = Pipe()
    with theirs:
        command = [sys.executable, "-m", "gpu_runner.server.client", str(theirs.fileno())]
        nothing = subprocess.DEVNULL  # standard output is the run's own
        worker = subprocess.Popen(command, stdin=nothing, stdout=nothing, pass_fds=[theirs.fileno()])
    return ours, worker


def split(requests: Sequence[PlannedRequest], processes: int) -> list[tuple[PlannedRequest, ...]]:
    """The plan in at most ``processes`` parts; requests that wait for one another stay together, heads in turn."""
    head_of = _heads(requests)
    parts: list[list[PlannedRequest]] = [[] for _ in range(max(1, processes))]
    part_of: dict[int, int] = {}
    for request in requests:
        part = part_of.setdefault(head_of[request.index], len(part_of) % len(parts))
        parts[part].append(request)
    return [tuple(part) for part in parts if part]


def _heads(requests: Sequence[PlannedRequest]) -> dict[int, int]:
    """One request for all that are tied by waiting for one another, in whatever order they come."""
    above = {request.index: request.index for request in requests}

    def top(index: int) -> int:
        while above[index] != index:
            above[index] = above[above[index]]
            index = above[index]
        return index

    for request in requests:
        for parent in request.after:
            if parent in above:
                above[top(request.index)] = top(parent)
    return {request.index: top(request.index) for request in requests}


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
