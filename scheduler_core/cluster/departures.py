"""Bytes that leave their source at moments to come: layer by layer, as a step computes them."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from scheduler_core.types.time import NEVER, Ns

FlowT = TypeVar("FlowT")


@dataclass(slots=True)
class _Leaving(Generic[FlowT]):
    """``size`` bytes of a flow, of which ``left`` layers of ``layers`` have not left yet."""

    flow: FlowT
    size: int
    start_ns: Ns
    span_ns: Ns
    layers: int
    left: int

    @property
    def next_ns(self) -> Ns:
        return self.start_ns + self.span_ns * (self.layers - self.left + 1) // self.layers

    def take(self) -> int:
        """Bytes of the next layer; a size that layers do not divide is spread evenly."""
        done = self.layers - self.left
        self.left -= 1
        return self.size * (done + 1) // self.layers - self.size * done // self.layers


class Departures(Generic[FlowT]):
    """What will leave, by flow; of one flow the layers of one step at a time.

    A step that computes over ``[start, end)`` has computed layer ``l`` of ``layers`` (from 0) at
    ``start + (end - start) x (l + 1) / layers``: layers take equal times. Then that layer's part of the bytes leaves.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._leaving: dict[int, _Leaving[FlowT]] = {}
        self._heap: list[tuple[Ns, int, _Leaving[FlowT]]] = []
        self._number = count()

    def plan(self, flow: FlowT, size: int, start_ns: Ns, end_ns: Ns) -> int:
        """Let ``size`` bytes leave while they are computed over ``[start_ns, end_ns)``; in how many pieces."""
        layers = min(self._layers, size)
        item = self._leaving[id(flow)] = _Leaving(flow, size, start_ns, end_ns - start_ns, layers, layers)
        self._push(item)
        return layers

    def due(self, now_ns: Ns) -> Iterator[tuple[FlowT, int]]:
        """(flow, bytes) of what leaves by ``now_ns``, in order of time."""
        while self.next_ns() <= now_ns:
            _, _, item = heapq.heappop(self._heap)
            size = item.take()
            if item.left:
                self._push(item)
            else:
                del self._leaving[id(item.flow)]
            yield item.flow, size

    def stop(self, flow: FlowT) -> None:
        """Nothing more of ``flow`` leaves."""
        self._leaving.pop(id(flow), None)

    def next_ns(self) -> Ns:
        """When something leaves next; `NEVER` when nothing will."""
        while self._heap and self._leaving.get(id(self._heap[0][2].flow)) is not self._heap[0][2]:
            heapq.heappop(self._heap)  # stopped meanwhile
        return self._heap[0][0] if self._heap else NEVER

    def _push(self, item: _Leaving[FlowT]) -> None:
        heapq.heappush(self._heap, (item.next_ns, next(self._number), item))
