"""Links between instances: transfers under way at once share the bandwidth, fairly and exactly."""

import heapq
from collections.abc import Hashable
from typing import NamedTuple

from scheduler_core.types.time import NEVER, NS_PER_S, Ns


class Moved(NamedTuple):
    """``size`` bytes of ``flow`` have landed. The link began with them at ``start_ns``, and would have taken
    ``alone_ns`` had it moved nothing else."""

    flow: Hashable
    size: int
    start_ns: Ns
    alone_ns: Ns


class _Moving:
    """A piece on a link. ``left`` are bytes x ns per second, so that a rate in bytes per second divides it."""

    __slots__ = ("flow", "landed_ns", "left", "size", "start_ns")

    def __init__(self, flow: Hashable, size: int) -> None:
        self.flow, self.size, self.left = flow, size, size * NS_PER_S
        self.start_ns: Ns | None = None
        self.landed_ns: Ns | None = None


class Link:
    """Processor sharing: ``n`` flows get a share of 1/n of ``bytes_per_s`` each; then ``latency_ns`` passes.

    What one flow sends while its bytes before are still moving follows them: a transfer has one share, in however many
    pieces it comes. Integers throughout: at each change the work done since the last one is rounded down to a whole
    unit of 1e-9 byte, so a piece alone takes ``ceil(bytes / rate) + latency``. Changes are pieces that begin, stop or
    end, never a look, so that times do not depend on how often somebody looks. Changes are O(pieces under way);
    ``due_ns``, when the next piece lands if none begins or stops before (`NEVER`: nothing is under way), is known.
    """

    def __init__(self, bytes_per_s: int, latency_ns: Ns = 0) -> None:
        self.bytes_per_s, self.latency_ns = bytes_per_s, latency_ns
        self._now: Ns = 0
        self._moving: list[_Moving] = []
        self._heads: list[_Moving] = []  # of each flow the first piece whose bytes have not all moved: it has a share
        self.due_ns: Ns = NEVER

    def alone_ns(self, size: int) -> Ns:
        """How long ``size`` bytes take with nothing beside them."""
        return _ceil(size * NS_PER_S, self.bytes_per_s) + self.latency_ns

    def predict_ns(self, size: int, flow: Hashable, now_ns: Ns) -> Ns:
        """How long what ``flow`` has under way and ``size`` bytes more take if as many others stay under way."""
        if not self._moving:
            return self.alone_ns(size)
        self._finish(now_ns)
        others = {id(item.flow) for item in self._moving} - {id(flow)}
        left = sum(item.left for item in self._moving if item.flow is flow) + size * NS_PER_S
        if any(item.flow is flow for item in self._heads):
            left -= self._share(now_ns)
        return _ceil(left * (len(others) + 1), self.bytes_per_s) + self.latency_ns

    def start(self, flow: Hashable, size: int, now_ns: Ns) -> None:
        """Begin to move ``size`` bytes, which slows down all other flows from now on."""
        self._serve(now_ns)
        self._moving.append(_Moving(flow, size))
        self._settle()
        self._look_ahead()

    def stop(self, flow: Hashable, now_ns: Ns) -> None:
        """Stop all that ``flow`` has under way."""
        self._serve(now_ns)
        self._moving = [item for item in self._moving if item.flow is not flow]
        self._settle()
        self._look_ahead()

    def hand_on(self, flow: Hashable, heir: Hashable) -> int:
        """What ``flow`` has under way belongs to ``heir`` from now on; how many pieces that are."""
        mine = [item for item in self._moving if item.flow is flow]
        for item in mine:
            item.flow = heir
        return len(mine)

    def landed(self, now_ns: Ns) -> list[Moved]:
        """What has landed by ``now_ns``, in order of its beginning; it is forgotten."""
        if now_ns < self.due_ns:
            return []
        self._finish(now_ns)
        done: list[_Moving] = []
        left: list[_Moving] = []
        for item in self._moving:
            (left if item.landed_ns is None or item.landed_ns > now_ns else done).append(item)
        self._moving = left
        self._look_ahead()
        return [Moved(item.flow, item.size, item.start_ns or 0, self.alone_ns(item.size)) for item in done]

    def _look_ahead(self) -> None:
        end_ns = self._next_end()
        due_ns = NEVER if end_ns == NEVER else end_ns + self.latency_ns
        for item in self._moving:
            if item.landed_ns is not None and item.landed_ns < due_ns:
                due_ns = item.landed_ns
        self.due_ns = due_ns

    def _next_end(self) -> Ns:
        """When the last byte of a piece is given to the link next; `NEVER` when none moves."""
        heads = self._heads
        if not heads:
            return NEVER
        least = heads[0].left
        for item in heads:
            least = min(least, item.left)
        return self._now + _ceil(least * len(heads), self.bytes_per_s)

    def _serve(self, now_ns: Ns) -> None:
        """Let the bandwidth work from the last change to ``now_ns``; each end of a piece is a change, too."""
        self._finish(now_ns)
        self._work(now_ns)

    def _finish(self, now_ns: Ns) -> None:
        """Let the bandwidth work up to the last end of a piece by ``now_ns``."""
        while (end_ns := self._next_end()) <= now_ns:
            self._work(end_ns)
            self._settle()

    def _work(self, until_ns: Ns) -> None:
        share = self._share(until_ns)
        for item in self._heads:
            item.left = max(0, item.left - share)
        self._now = max(self._now, until_ns)

    def _share(self, until_ns: Ns) -> int:
        """What each flow that moves is served from the last change to ``until_ns``, if no piece ends before."""
        return max(0, until_ns - self._now) * self.bytes_per_s // len(self._heads) if self._heads else 0

    def _settle(self) -> None:
        """Note whose bytes have all moved, and who begins to move now."""
        heads: dict[int, _Moving] = {}
        for item in self._moving:
            if item.landed_ns is None:
                if item.left == 0:
                    item.landed_ns = self._now + self.latency_ns
                else:
                    heads.setdefault(id(item.flow), item)
        self._heads = list(heads.values())
        for item in self._heads:
            if item.start_ns is None:
                item.start_ns = self._now


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


class Links:
    """One link that all share, or one for each pair of instances."""

    def __init__(self, *, bytes_per_s: int, latency_ns: Ns, shared: bool) -> None:
        self._rate, self._latency, self._shared = bytes_per_s, latency_ns, shared
        self._links: list[Link] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._asked: set[int] = set()  # whoever asked for these may have changed them
        self._due: list[tuple[Ns, int]] = []  # a heap that holds, of each link, its `Link.due_ns`, and older ones

    def between(self, source: int, destination: int) -> Link:
        """The link that a transfer from ``source`` to ``destination`` uses, to be changed before `next_ns` is asked."""
        key = (0, 0) if self._shared else (source, destination)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._links)
            self._links.append(Link(self._rate, self._latency))
        self._asked.add(number)
        return self._links[number]

    def next_ns(self) -> Ns:
        """When the next piece lands; `NEVER` when nothing is under way. O(log links) for each that was asked for."""
        links, due = self._links, self._due
        if self._asked:
            for number in self._asked:
                if links[number].due_ns != NEVER:
                    heapq.heappush(due, (links[number].due_ns, number))
            self._asked.clear()
        while due and due[0][0] != links[due[0][1]].due_ns:
            heapq.heappop(due)
        return due[0][0] if due else NEVER

    def landed(self, now_ns: Ns) -> list[Moved]:
        """What has landed, by link and beginning."""
        ready: set[int] = set()
        while self.next_ns() <= now_ns:
            ready.add(heapq.heappop(self._due)[1])
        if not ready:
            return []
        self._asked |= ready
        return [moved for number in sorted(ready) for moved in self._links[number].landed(now_ns)]
