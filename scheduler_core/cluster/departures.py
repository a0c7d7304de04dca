"""Bytes that leave their source at moments to come: layer by layer, as a step computes them."""

import heapq
from dataclasses import dataclass

from scheduler_core.cluster.transfer import Transfer
from scheduler_core.types.time import NEVER, Ns


@dataclass(slots=True)
class _Leaving:
    """``size`` bytes of a transfer, of which ``left`` layers of ``layers`` have not left yet."""

    transfer: Transfer
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


class Departures:
    """What will leave, by transfer; of one transfer the layers of one step at a time.

    A step that computes over ``[start, end)`` has computed layer ``l`` of ``layers`` (from 0) at
    ``start + (end - start) x (l + 1) / layers``: layers take equal times. Then that layer's part of the bytes leaves.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._leaving: dict[int, _Leaving] = {}
        self._heap: list[tuple[Ns, int, _Leaving]] = []
        self._pushed = 0

    def plan(self, transfer: Transfer, size: int, start_ns: Ns, end_ns: Ns) -> int:
        """Let ``size`` bytes leave while they are computed over ``[start_ns, end_ns)``; in how many pieces."""
        layers = min(self._layers, size)
        item = self._leaving[transfer.request] = _Leaving(transfer, size, start_ns, end_ns - start_ns, layers, layers)
        self._push(item)
        return layers

    def due(self, now_ns: Ns) -> list[tuple[Transfer, int]]:
        """(transfer, bytes) of what leaves by ``now_ns``, in order of time."""
        left: list[tuple[Transfer, int]] = []
        while self.next_ns() <= now_ns:
            _, _, item = heapq.heappop(self._heap)
            left.append((item.transfer, item.take()))
            if item.left:
                self._push(item)
            else:
                del self._leaving[item.transfer.request]
        return left

    def stop(self, transfer: Transfer) -> None:
        """Nothing more of ``transfer`` leaves."""
        self._leaving.pop(transfer.request, None)

    def next_ns(self) -> Ns:
        """When something leaves next; `NEVER` when nothing will."""
        heap = self._heap
        while heap and self._leaving.get(heap[0][2].transfer.request) is not heap[0][2]:
            heapq.heappop(heap)  # stopped meanwhile
        return heap[0][0] if heap else NEVER

    def _push(self, item: _Leaving) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (item.next_ns, self._pushed, item))
