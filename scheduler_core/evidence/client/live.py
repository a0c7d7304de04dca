"""Live samples of a run against a server: the client's stamps, and the newest look at the metric pages."""

from collections import deque
from collections.abc import Callable

from scheduler_core.evidence.live.sampler import WINDOW_NS
from scheduler_core.spec.job import Sample
from scheduler_core.types.client_records import Observed, Sent, Streamed
from scheduler_core.types.quantile import quantile
from scheduler_core.types.records import Arrived, Finished, Record
from scheduler_core.types.time import Ns, ms_from_ns, s_from_ns


class ClientSampler:
    """A sink that emits a `Sample` at multiples of ``interval_ns``; what no source exports stays absent in it."""

    def __init__(self, *, interval_ns: Ns, on_sample: Callable[[Sample], None], window_ns: Ns = WINDOW_NS) -> None:
        self.done = 0
        self._interval = interval_ns
        self._window_ns = window_ns
        self._on_sample = on_sample
        self._due = interval_ns
        self._now: Ns = 0
        self._arrived: dict[int, Ns] = {}
        self._sent: set[int] = set()
        self._last: dict[int, Ns] = {}
        self._tokens: deque[tuple[Ns, int]] = deque()
        self._ttft: deque[tuple[Ns, Ns]] = deque()
        self._gaps: deque[tuple[Ns, Ns]] = deque()
        self._levels: dict[str, dict[str, float]] = {}
        self._totals: dict[str, deque[tuple[Ns, dict[str, float]]]] = {}

    def write(self, record: Record) -> None:
        """Fold one record; emits the sample that it makes due."""
        at = getattr(record, "at_ns", None)
        if at is not None and at >= self._due:
            self._emit(at - at % self._interval)
        match record:
            case Streamed():
                for row in record.rows:
                    self._chunk(*row)
            case Arrived():
                self._arrived[record.request] = record.at_ns
            case Sent():
                self._sent.add(record.request)
                self._last.pop(record.request, None)
            case Finished():
                self.done += 1
                self._arrived.pop(record.request, None)
                self._last.pop(record.request, None)
                self._sent.discard(record.request)
            case Observed() if not record.problem:
                self._levels[record.source] = record.values
                self._totals.setdefault(record.source, deque()).append((record.at_ns, record.values))
        if at is not None and at > self._now:
            self._now = at

    def flush(self) -> None:
        """Emit the last sample, at the time of the last record."""
        self._emit(self._now)

    def _chunk(self, request: int, at: Ns, tokens: int) -> None:
        self._tokens.append((at, tokens))
        before = self._last.get(request)
        if before is not None:
            self._gaps.append((at, at - before))
        elif request in self._arrived:
            self._ttft.append((at, at - self._arrived[request]))
        self._last[request] = at

    def _emit(self, at: Ns) -> None:
        self._due = at - at % self._interval + self._interval
        self._forget(at - self._window_ns)
        span_s = s_from_ns(max(min(self._window_ns, at), 1))
        ttft = sorted(value for _, value in self._ttft)
        gaps = sorted(value for _, value in self._gaps)
        prefill = self._rate("prompt_tokens", span_s)
        hits, lookups = self._grown("cache_hits"), self._grown("cache_lookups")
        preemptions = self._level("preemptions")
        used, cached, blocks = self._whole("kv_used"), self._whole("kv_cached"), self._whole("kv_blocks")
        self._on_sample(
            Sample(
                t_s=s_from_ns(at),
                waiting=self._whole("waiting"),
                running=self._whole("running"),
                paused=self._whole("paused"),
                kv_used=used,
                kv_cached=cached,
                kv_free=None if used is None or blocks is None else blocks - used - (cached or 0),
                hit_rate=hits / lookups if hits is not None and lookups else None,
                prefill_tokens_per_s=prefill,
                decode_tokens_per_s=sum(tokens for _, tokens in self._tokens) / span_s,
                busy_share=None,
                step_prefill_tokens=None,
                step_decode_tokens=None,
                step_budget=None,
                ttft_p50_ms=_ms(ttft, 0.5),
                ttft_p95_ms=_ms(ttft, 0.95),
                gap_p50_ms=_ms(gaps, 0.5),
                gap_p95_ms=_ms(gaps, 0.95),
                gap_p99_ms=_ms(gaps, 0.99),
                done=self.done,
                preemptions=None if preemptions is None else round(preemptions),
                in_flight=len(self._sent),
                window_s=span_s,
            )
        )

    def _level(self, name: str) -> float | None:
        found = [values[name] for values in self._levels.values() if name in values]
        return sum(found) if found else None

    def _whole(self, name: str) -> int | None:
        value = self._level(name)
        return None if value is None else round(value)

    def _grown(self, name: str) -> float | None:
        found = [
            looks[-1][1][name] - looks[0][1][name]
            for looks in self._totals.values()
            if len(looks) > 1 and name in looks[0][1] and name in looks[-1][1]
        ]
        return sum(found) if found else None

    def _rate(self, name: str, span_s: float) -> float | None:
        grown = self._grown(name)
        return None if grown is None else grown / span_s

    def _forget(self, before: Ns) -> None:
        for rows in (self._tokens, self._ttft, self._gaps):
            while rows and rows[0][0] <= before:
                rows.popleft()
        for looks in self._totals.values():
            while len(looks) > 1 and looks[1][0] <= before:
                looks.popleft()


def _ms(values: list[Ns], share: float) -> float | None:
    return ms_from_ns(round(quantile(values, share))) if values else None
