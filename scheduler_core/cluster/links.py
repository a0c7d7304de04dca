"""Links between instances: transfers under way at once share the bandwidth, fairly and exactly."""

from dataclasses import dataclass
from typing import NamedTuple

from scheduler_core.types.time import NEVER, NS_PER_S, Ns


class Moved(NamedTuple):
    """``size`` bytes of ``flow`` have landed. The link began with them at ``start_ns``, and would have taken
    ``alone_ns`` had it moved nothing else."""

    flow: object
    size: int
    start_ns: Ns
    alone_ns: Ns


@dataclass(slots=True)
class _Moving:
    flow: object
    size: int
    left: int  # bytes x ns per second, so that a rate in bytes per second divides it into whole ns
    start_ns: Ns | None = None
    landed_ns: Ns | None = None


@dataclass
class Link:
    """Processor sharing: ``n`` flows get a share of 1/n of ``bytes_per_s`` each; then ``latency_ns`` passes.

    What one flow sends while its bytes before are still moving follows them: a transfer has one share, in however many
    pieces it comes. Integers throughout: at each change the work done since the last one is rounded down to a whole
    unit of 1e-9 byte, so a piece alone takes ``ceil(bytes / rate) + latency``. Changes are pieces that begin, stop or
    end, never a look, so that times do not depend on how often somebody looks. Changes are O(pieces under way);
    ``due_ns``, when the next piece lands if none begins or stops before (`NEVER`: nothing is under way), is known.
    """

    bytes_per_s: int
    latency_ns: Ns = 0
    _now: Ns = 0

    def __post_init__(self) -> None:
        self._moving: list[_Moving] = []
        self._heads: list[_Moving] = []  # of each flow the first piece whose bytes have not all moved: it has a share
        self.due_ns: Ns = NEVER

    def alone_ns(self, size: int) -> Ns:
        """How long ``size`` bytes take with nothing beside them."""
        return _ceil(size * NS_PER_S, self.bytes_per_s) + self.latency_ns

    def predict_ns(self, size: int, flow: object, now_ns: Ns) -> Ns:
        """How long what ``flow`` has under way and ``size`` bytes more take if as many others stay under way."""
        self._finish(now_ns)
        others = {id(item.flow) for item in self._moving} - {id(flow)}
        left = sum(item.left for item in self._moving if item.flow is flow) + size * NS_PER_S
        if any(item.flow is flow for item in self._heads):
            left -= self._share(now_ns)
        return _ceil(left * (len(others) + 1), self.bytes_per_s) + self.latency_ns

    def start(self, flow: object, size: int, now_ns: Ns) -> None:
        """Begin to move ``size`` bytes, which slows down all other flows from now on."""
        self._serve(now_ns)
        self._moving.append(_Moving(flow, size, size * NS_PER_S))
        self._settle()
        self._look_ahead()

    def stop(self, flow: object, now_ns: Ns) -> None:
        """Stop all that ``flow`` has under way."""
        self._serve(now_ns)
        self._moving = [item for item in self._moving if item.flow is not flow]
        self._settle()
        self._look_ahead()

    def hand_on(self, flow: object, heir: object) -> int:
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
        times = [item.landed_ns for item in self._moving if item.landed_ns is not None]
        if (end_ns := self._next_end()) is not None:
            times.append(end_ns + self.latency_ns)
        self.due_ns = min(times, default=NEVER)

    def _next_end(self) -> Ns | None:
        """When the last byte of a piece is given to the link next."""
        heads = self._heads
        return self._now + _ceil(min(item.left for item in heads) * len(heads), self.bytes_per_s) if heads else None

    def _serve(self, now_ns: Ns) -> None:
        """Let the bandwidth work from the last change to ``now_ns``; each end of a piece is a change, too."""
        self._finish(now_ns)
        self._work(now_ns)

    def _finish(self, now_ns: Ns) -> None:
        """Let the bandwidth work up to the last end of a piece by ``now_ns``."""
        while (end_ns := self._next_end()) is not None and end_ns <= now_ns:
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
            if item.left == 0 and item.landed_ns is None:
                item.landed_ns = self._now + self.latency_ns
            if item.landed_ns is None:
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
        self._links: dict[tuple[int, int], Link] = {}
        self._due_ns: Ns | None = NEVER  # None: not known, as whoever asked for a link may have changed it

    def between(self, source: int, destination: int) -> Link:
        """The link that a transfer from ``source`` to ``destination`` uses, to be changed before `next_ns` is asked."""
        self._due_ns = None
        key = (0, 0) if self._shared else (source, destination)
        if key not in self._links:
            self._links[key] = Link(self._rate, self._latency)
        return self._links[key]

    def next_ns(self) -> Ns:
        """When the next piece lands; `NEVER` when nothing is under way. O(1) as long as nobody asks for a link."""
        if self._due_ns is None:
            self._due_ns = min((link.due_ns for link in self._links.values()), default=NEVER)
        return self._due_ns

    def landed(self, now_ns: Ns) -> list[Moved]:
        """What has landed, by link and beginning."""
        if now_ns < self.next_ns():
            return []
        self._due_ns = None
        due = [link for link in self._links.values() if link.due_ns <= now_ns]
        return [moved for link in due for moved in link.landed(now_ns)]
