"""Whole requests as bytes, made ahead of their time: before the start as far as memory allows, then between sends."""

from collections import deque
from collections.abc import Iterable

from gpu_runner.server.client.naming import Namer
from gpu_runner.server.client.prompts import PromptWriter, Said
from gpu_runner.server.client.shardplan import ShardPlan, next_turn
from gpu_runner.server.http.request import head_bytes
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.time import Ns

LARGEST_AHEAD_BYTES = 64 * 1024 * 1024
AHEAD = 20_000
"""Most requests that lie made at once; to make as many takes about a second."""

Made = tuple[bytes, Said]


class Outbox:
    """Makes the requests of a `ShardPlan`; ``coming`` are those due by themselves, the earliest first."""

    def __init__(self, plan: ShardPlan, coming: Iterable[tuple[Ns, PlannedRequest]]) -> None:
        self.writer = PromptWriter(plan.manner, _history(plan.requests))
        self._namer = Namer(plan.run)
        self._head = head_bytes(plan.origin, "POST", plan.manner.path, plan.headers)
        self._coming = deque(coming)
        self._made: dict[int, Made] = {}
        self._bytes = 0
        self._before: dict[int, Said] = {}

    def take(self, request: PlannedRequest) -> Made:
        """The whole request, and what it says; made now where it was not made ahead."""
        made = self._made.pop(request.index, None)
        if made is None:
            return self._make(request)
        self._bytes -= len(made[0])
        return made

    def follows(self, request: int, said: Said) -> None:
        """``request`` is to contain ``said``, the turn before it with its real answer."""
        self._before[request] = said

    def forget(self, request: int) -> None:
        """``request`` is over."""
        self._before.pop(request, None)

    def released(self, later: Iterable[tuple[Ns, PlannedRequest]]) -> None:
        """These are due too from now on, soon as a rule."""
        self._coming.extendleft(later)

    def make(self, most: int, now_ns: Ns) -> int:
        """Make up to ``most`` of the requests that are due next, later than ``now_ns``; how many."""
        count = 0
        coming, made = self._coming, self._made
        while coming and count < most and len(made) < AHEAD and self._bytes < LARGEST_AHEAD_BYTES:
            at_ns, request = coming.popleft()
            if at_ns > now_ns:
                made[request.index] = whole = self._make(request)
                self._bytes += len(whole[0])
                count += 1
        return count

    def _make(self, request: PlannedRequest) -> Made:
        body, said = self.writer.body(request, self._before.pop(request.index, None))
        name = self._namer.name(request.index)
        own = f"x-request-id: {name}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return b"%b%b%b" % (self._head, own.encode("ascii"), body), said


def _history(requests: tuple[PlannedRequest, ...]) -> dict[int, int]:
    by_index = {request.index: request for request in requests}
    found = {}
    for request in requests:
        for before in map(by_index.get, request.after):
            if before is not None and next_turn(before, request):
                found[request.index] = before.prompt_tokens + before.output_tokens
    return found
