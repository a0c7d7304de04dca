"""Links between instances: transfers under way at once share the bandwidth, fairly and exactly."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduler_core.types.time import NS_PER_S, Ns


@dataclass(slots=True)
class _Moving:
    flow: object
    left: int  # bytes x ns per second, so that a rate in bytes per second divides it into whole ns
    landed_ns: Ns | None = None


@dataclass
class Link:
    """Processor sharing: ``n`` transfers get a share of 1/n of ``bytes_per_s`` each; then ``latency_ns`` passes.

    Integers throughout: at each change the work done since the last one is rounded down to a whole unit of 1e-9 byte,
    so a transfer alone takes ``ceil(bytes / rate) + latency``. All questions are O(transfers under way).
    """

    bytes_per_s: int
    latency_ns: Ns = 0
    _now: Ns = 0

    def __post_init__(self) -> None:
        self._moving: list[_Moving] = []

    @property
    def busy(self) -> int:
        """Transfers under way."""
        return len(self._moving)

    def predict_ns(self, size: int, *, beside: int | None = None) -> Ns:
        """How long ``size`` bytes take if as many other transfers as now (or ``beside``) stay under way."""
        others = self.busy if beside is None else beside
        return _ceil(size * NS_PER_S * (others + 1), self.bytes_per_s) + self.latency_ns

    def start(self, flow: object, size: int, now_ns: Ns) -> None:
        """Begin to move ``size`` bytes, which slows down all others from now on."""
        self._serve(now_ns)
        self._moving.append(_Moving(flow, size * NS_PER_S))
        self._settle()

    def stop_where(self, given_up: Callable[[object], bool], now_ns: Ns) -> None:
        """Stop the transfers that ``given_up`` names."""
        self._serve(now_ns)
        self._moving = [item for item in self._moving if not given_up(item.flow)]

    def next_ns(self) -> Ns | None:
        """When the next transfer lands if none begins or stops before; None when nothing is under way."""
        times = [item.landed_ns for item in self._moving if item.landed_ns is not None]
        moving = [item.left for item in self._moving if item.landed_ns is None]
        if moving:
            times.append(self._now + _ceil(min(moving) * len(moving), self.bytes_per_s) + self.latency_ns)
        return min(times, default=None)

    def landed(self, now_ns: Ns) -> list[object]:
        """Transfers that have landed by ``now_ns``, in order of their beginning; they are forgotten."""
        self._serve(now_ns)
        done = [item for item in self._moving if item.landed_ns is not None and item.landed_ns <= now_ns]
        self._moving = [item for item in self._moving if item not in done]
        return [item.flow for item in done]

    def _serve(self, now_ns: Ns) -> None:
        """Let the bandwidth work from the last change to ``now_ns``; each end of a transfer is a change, too."""
        while self._now < now_ns:
            moving = [item for item in self._moving if item.landed_ns is None]
            if not moving:
                break
            until = min(now_ns, self._now + _ceil(min(item.left for item in moving) * len(moving), self.bytes_per_s))
            share = (until - self._now) * self.bytes_per_s // len(moving)
            for item in moving:
                item.left = max(0, item.left - share)
            self._now = until
            self._settle()
        self._now = max(self._now, now_ns)

    def _settle(self) -> None:
        for item in self._moving:
            if item.left == 0 and item.landed_ns is None:
                item.landed_ns = self._now + self.latency_ns


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
        """When the next transfer lands."""
        times = [at for link in self._links.values() if (at := link.next_ns()) is not None]
        return min(times, default=None)

    def landed(self, now_ns: Ns) -> list[object]:
        """Transfers that have landed, by link and beginning."""
        return [flow for link in self._links.values() for flow in link.landed(now_ns)]
