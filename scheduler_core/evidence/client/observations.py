"""What metric sources said during a run: levels over time, growth of counters, per pool and in sum."""

from dataclasses import dataclass, field
from itertools import pairwise

from scheduler_core.types.client_records import Observed
from scheduler_core.types.time import NS_PER_S, Ns

# Name of an observed value -> what it is. Levels are now; totals grow since the first look at the source.
LEVELS: dict[str, str] = {
    "waiting": "requests waiting in the server",
    "running": "requests running in the server",
    "paused": "requests paused in the server",
    "kv_used": "KV blocks in use",
    "kv_cached": "KV blocks that hold reusable prefixes and could be evicted",
    "kv_blocks": "KV blocks there are",
    "kv_share": "share of the KV blocks in use",
    "prefill_queue": "requests waiting for a prefill instance to take them up",
    "transfer_queue": "requests whose state is on its way to a decode instance",
    "device_busy_share": "share of the time in which a device ran anything, mean over devices",
    "device_memory_bytes": "device memory in use",
    "device_power_w": "power that the devices draw",
    "device_clock_hz": "clock of the devices' compute units, mean over devices",
}
TOTALS: dict[str, str] = {
    "prompt_tokens": "prompt tokens taken in",
    "output_tokens": "output tokens made",
    "cache_lookups": "prompt tokens looked up in the prefix cache",
    "cache_hits": "prompt tokens found in the prefix cache",
    "preemptions": "requests that lost their blocks while running",
    "finished": "requests finished",
    "queue_s": "seconds that requests waited before they were first run",
    "queue_n": "requests behind queue_s",
    "prefill_s": "seconds of prefill phases",
    "prefill_n": "requests behind prefill_s",
    "decode_s": "seconds of decode phases",
    "decode_n": "requests behind decode_s",
    "ttft_s": "seconds to first tokens, by the server's clock",
    "ttft_n": "requests behind ttft_s",
    "transfer_bytes": "KV bytes moved between instances",
    "transfer_s": "seconds of KV transfers",
    "transfer_n": "transfers",
    "transfers_failed": "transfers that failed",
    "device_energy_j": "energy that the devices used",
}

_AVERAGED = ("kv_share", "device_busy_share", "device_clock_hz")


@dataclass
class Source:
    """One source's looks, in order."""

    role: str
    pool: str
    looks: list[tuple[Ns, dict[str, float]]] = field(default_factory=list)
    restarts: int = 0
    problems: list[str] = field(default_factory=list)

    def exports(self, name: str) -> bool:
        """Whether the source ever gave the value."""
        return any(name in values for _, values in self.looks)


class Observations:
    """The looks of a run at all its sources."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}

    def take(self, record: Observed) -> None:
        """Take one look."""
        source = self.sources.setdefault(record.source, Source(record.role, record.pool))
        source.restarts += record.restarted
        if record.problem:
            if record.problem not in source.problems:
                source.problems.append(record.problem)
        else:
            source.looks.append((record.at_ns, record.values))

    def exported(self, name: str, role: str | None = None) -> list[Source]:
        """Sources that gave the value; those of one role if asked."""
        return [s for s in self.sources.values() if s.exports(name) and role in (None, s.role)]

    @property
    def restarts(self) -> int:
        """Times that a source's counters went back."""
        return sum(source.restarts for source in self.sources.values())

    def mean(self, name: str, start_ns: Ns, end_ns: Ns) -> float | None:
        """Time-weighted mean of a level over the range; None where nobody exports it.

        Amounts are summed over sources; shares and clocks, which are no amounts, are averaged.
        """
        means = [_mean(source, name, start_ns, end_ns) for source in self.exported(name)]
        found = [value for value in means if value is not None]
        if not found:
            return None
        return sum(found) / (len(found) if name in _AVERAGED else 1)

    def most(self, name: str, start_ns: Ns, end_ns: Ns) -> float | None:
        """Largest level that any one source showed in the range."""
        seen = [
            values[name]
            for source in self.exported(name)
            for at, values in source.looks
            if name in values and start_ns <= at <= end_ns
        ]
        return max(seen, default=None)

    def growth(self, name: str, start_ns: Ns, role: str | None = None) -> float | None:
        """How far a total grew from ``start_ns`` to the last look, summed over sources; None where nobody exports it.

        The last look is after the last answer, so that samples which a server publishes late are in it.
        """
        found = [_growth(source, name, start_ns) for source in self.exported(name, role)]
        return sum(found) if found else None

    def between(self, name: str, start_ns: Ns, end_ns: Ns) -> float | None:
        """Growth of a total over the looks that enclose the range; None where nobody exports it."""
        found = [
            value for source in self.exported(name) if (value := _enclosed(source, name, start_ns, end_ns)) is not None
        ]
        return sum(found) if found else None


def _mean(source: Source, name: str, start_ns: Ns, end_ns: Ns) -> float | None:
    """A level holds until the next look."""
    rows = [(at, values[name]) for at, values in source.looks if name in values]
    weighted = span = 0.0
    for (at, value), (until, _) in pairwise([*rows, (end_ns, 0.0)]):
        part = max(0, min(until, end_ns) - max(at, start_ns))
        weighted += value * part
        span += part
    return weighted / span if span else None


def _growth(source: Source, name: str, start_ns: Ns) -> float:
    rows = [(at, values[name]) for at, values in source.looks if name in values]
    before = [value for at, value in rows if at <= start_ns]
    return rows[-1][1] - (before[-1] if before else rows[0][1])


def _enclosed(source: Source, name: str, start_ns: Ns, end_ns: Ns) -> float | None:
    rows = [(at, values[name]) for at, values in source.looks if name in values]
    before = [value for at, value in rows if at <= start_ns]
    after = [value for at, value in rows if at >= end_ns]
    return after[0] - before[-1] if before and after else None


def rate_per_s(growth: float, start_ns: Ns, end_ns: Ns) -> float:
    """Growth per second over a range."""
    return growth / max((end_ns - start_ns) / NS_PER_S, 1e-9)
