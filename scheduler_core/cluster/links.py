"""Links between instances: transfers under way at once share the bandwidth, fairly and exactly."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_core.types.time import NS_PER_S, Ns


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
    unit of 1e-9 byte, so a piece alone takes ``ceil(bytes / rate) + latency``. All questions are O(pieces under way).
    """

    bytes_per_s: int
    latency_ns: Ns = 0
    _now: Ns = 0

    def __post_init__(self) -> None:
        self._moving: list[_Moving] = []

    def alone_ns(self, size: int) -> Ns:
        """How long ``size`` bytes take with nothing beside them."""
        return _ceil(size * NS_PER_S, self.bytes_per_s) + self.latency_ns

    def predict_ns(self, size: int, flow: object) -> Ns:
        """How long what ``flow`` has under way and ``size`` bytes more take if as many others stay under way."""
        others = {id(item.flow) for item in self._moving} - {id(flow)}
        left = sum(item.left for item in self._moving if item.flow is flow) + size * NS_PER_S
        return _ceil(left * (len(others) + 1), self.bytes_per_s) + self.latency_ns

    def start(self, flow: object, size: int, now_ns: Ns) -> None:
        """Begin to move ``size`` bytes, which slows down all other flows from now on."""
        self._serve(now_ns)
        self._moving.append(_Moving(flow, size, size * NS_PER_S))
        self._settle()

    def stop(self, flow: object, now_ns: Ns) -> None:
        """Stop all that ``flow`` has under way."""
        self._serve(now_ns)
        self._moving = [item for item in self._moving if item.flow is not flow]
        self._settle()

    def next_ns(self) -> Ns | None:
        """When the next piece lands if none begins or stops before; None when nothing is under way."""
        times = [item.landed_ns for item in self._moving if item.landed_ns is not None]
        heads = self._heads()
        if heads:
            times.append(self._now + _ceil(min(item.left for item in heads) * len(heads), self.bytes_per_s)
                         + self.latency_ns)  # fmt: skip
        return min(times, default=None)

    def landed(self, now_ns: Ns) -> list[Moved]:
        """What has landed by ``now_ns``, in order of its beginning; it is forgotten."""
        self._serve(now_ns)
        done = [item for item in self._moving if item.landed_ns is not None and item.landed_ns <= now_ns]
        if done:
            self._moving = [item for item in self._moving if item.landed_ns is None or item.landed_ns > now_ns]
        return [Moved(item.flow, item.size, item.start_ns or 0, self.alone_ns(item.size)) for item in done]

    def _heads(self) -> Collection[_Moving]:
        """The piece of each flow that has a share: its first one whose bytes have not all moved."""
        heads: dict[int, _Moving] = {}
        for item in self._moving:
            if item.landed_ns is None:
                heads.setdefault(id(item.flow), item)
        return heads.values()

    def _serve(self, now_ns: Ns) -> None:
        """Let the bandwidth work from the last change to ``now_ns``; each end of a piece is a change, too."""
        while self._now < now_ns:
            heads = self._heads()
            if not heads:
                break
            until = min(now_ns, self._now + _ceil(min(item.left for item in heads) * len(heads), self.bytes_per_s))
            share = (until - self._now) * self.bytes_per_s // len(heads)
            for item in heads:
                item.left = max(0, item.left - share)
            self._now = until
            self._settle()
        self._now = max(self._now, now_ns)

    def _settle(self) -> None:
        """Note whose bytes have all moved, and who begins to move now."""
        for item in self._moving:
            if item.left == 0 and item.landed_ns is None:
                item.landed_ns = self._now + self.latency_ns
        for item in self._heads():
            if item.start_ns is None:
                item.start_ns = self._now


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


class Links:
    """One link that all share, or one for each pair of instances."""

    def __init__(self, *, bytes_per_s: int, latency_ns: Ns, shared: bool) -> None:
        self._rate, self._latency, self._shared = bytes_per_s, latency_ns, shared
        self._links: dict[tuple[int, int], Link] = {}

    def between(self, source: int, destination: int) -> Link:
        """The link that a transfer from ``source`` to ``destination`` uses."""
        key = (0, 0) if self._shared else (source, destination)
        if key not in self._links:
            self._links[key] = Link(self._rate, self._latency)
        return self._links[key]

    def next_ns(self) -> Ns | None:
        """When the next piece lands."""
        times = [at for link in self._links.values() if (at := link.next_ns()) is not None]
        return min(times, default=None)

    def landed(self, now_ns: Ns) -> list[Moved]:
        """What has landed, by link and beginning."""
        return [moved for link in self._links.values() for moved in link.landed(now_ns)]
