"""The same streams by other tools' formulas, so that their tables can be reconciled with ours.

The same name means different numbers elsewhere: some count the first token into TPOT, some pool gaps per stream chunk,
some take one mean per request. Each entry says in words what it computes; ours is ``headway``. Input is the token times
of each request; a chunk of several tokens is a set of equal times.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat

from scheduler_core.types.quantile import quantile


@dataclass(frozen=True, slots=True)
class Stream:
    """One request's answer: intended send, real send and each token's time, in ms; ``failed`` ones may hold tokens."""

    intended_ms: float
    sent_ms: float
    token_ms: tuple[float, ...]
    failed: bool = False

    @property
    def chunks(self) -> list[tuple[float, int]]:
        """(time, tokens) of each stream chunk: tokens with equal times came together."""
        found: list[tuple[float, int]] = []
        for time in self.token_ms:
            if found and found[-1][0] == time:
                found[-1] = (time, found[-1][1] + 1)
            else:
                found.append((time, 1))
        return found


@dataclass(frozen=True, slots=True)
class Samples:
    """Weighted samples of one metric."""

    values: tuple[float, ...]
    weights: tuple[float, ...] | None = None

    def mean(self) -> float | None:
        """Weighted mean; None without samples."""
        if not self.values:
            return None
        weights = self.weights or tuple(repeat(1.0, len(self.values)))
        return sum(v * w for v, w in zip(self.values, weights, strict=True)) / sum(weights)

    def at(self, share: float) -> float | None:
        """Quantile: linear between samples, or the weighted inverse distribution where the tool weighs."""
        if not self.values:
            return None
        if self.weights is None:
            return quantile(sorted(self.values), share)
        rows = sorted(zip(self.values, self.weights, strict=True))
        target, passed = share * sum(self.weights), 0.0
        for value, weight in rows:
            passed += weight
            if passed >= target - 1e-12:
                return value
        return rows[-1][0]


Measure = Callable[[Sequence[Stream]], Samples]


@dataclass(frozen=True, slots=True)
class Formula:
    """One metric as a tool defines it."""

    text: str
    measure: Measure


def _each(streams: Iterable[Stream], value: Callable[[Stream], float | None]) -> Samples:
    found = [value(stream) for stream in streams if not stream.failed and stream.token_ms]
    return Samples(tuple(item for item in found if item is not None))


def _pool(streams: Iterable[Stream], values: Callable[[Stream], Iterable[float]]) -> Samples:
    return Samples(tuple(chain.from_iterable(values(s) for s in streams if not s.failed and s.token_ms)))


def _weighted(
    streams: Iterable[Stream], value: Callable[[Stream], float | None], weight: Callable[[Stream], float]
) -> Samples:
    rows = [(value(s), weight(s)) for s in streams if not s.failed and s.token_ms]
    kept = [(v, w) for v, w in rows if v is not None]
    return Samples(tuple(v for v, _ in kept), tuple(w for _, w in kept))


def _tokens(stream: Stream) -> int:
    return len(stream.token_ms)


def _decode(stream: Stream) -> float:
    return stream.token_ms[-1] - stream.token_ms[0]


def _tpot(stream: Stream) -> float | None:
    return _decode(stream) / (_tokens(stream) - 1) if _tokens(stream) > 1 else None


def _tpot_with_first(stream: Stream) -> float:
    return (stream.token_ms[-1] - stream.sent_ms) / _tokens(stream)


def _aiperf_itl(stream: Stream) -> float | None:
    rest = _tokens(stream) - stream.chunks[0][1]
    return _decode(stream) / rest if rest > 0 else None


def _token_gaps(stream: Stream) -> list[float]:
    """Gaps per token, even inside a chunk: a chunk of n tokens after t ms is n gaps of t / n."""
    chunks = stream.chunks
    return [(time - before) / count for (before, _), (time, count) in pairwise(chunks) for _ in range(count)]


def _chunk_gaps(stream: Stream) -> list[float]:
    return [time - before for (before, _), (time, _) in pairwise(stream.chunks)]


def _stamp_gaps(stream: Stream) -> list[float]:
    return [after - before for before, after in pairwise(stream.token_ms)]


def _ttft(stream: Stream) -> float:
    return stream.token_ms[0] - stream.sent_ms


def _guidellm_ttft(streams: Sequence[Stream]) -> Samples:
    return Samples(tuple(_ttft(s) if s.token_ms else 0.0 for s in streams if not s.failed))


def _llmperf_gaps(stream: Stream) -> float:
    return (_ttft(stream) + sum(_chunk_gaps(stream))) / len(stream.chunks)


_TTFT = Formula("first token - real send", lambda s: _each(s, _ttft))
_TPOT = Formula("(last - first) / (tokens - 1), one per request", lambda s: _each(s, _tpot))
_E2E = Formula("last token - real send", lambda s: _each(s, lambda r: r.token_ms[-1] - r.sent_ms))
_CHUNKS = Formula("gap per stream chunk, pooled over requests", lambda s: _pool(s, _chunk_gaps))

FORMULAS: dict[str, dict[str, Formula]] = {
    "headway": {
        "ttft_ms": Formula("first token - intended send", lambda s: _each(s, lambda r: r.token_ms[0] - r.intended_ms)),
        "tpot_ms": _TPOT,
        "itl_ms": Formula("gap per token, even inside a chunk, pooled", lambda s: _pool(s, _token_gaps)),
        "e2e_ms": Formula("last token - intended send", lambda s: _each(s, lambda r: r.token_ms[-1] - r.intended_ms)),
    },
    "guidellm": {
        "ttft_ms": Formula("first token - real send; a missing one counts 0", _guidellm_ttft),
        "tpot_ms": Formula(
            "(last - real send) / tokens: first token included, weighted by tokens",
            lambda s: _weighted(s, _tpot_with_first, _tokens),
        ),
        "itl_ms": Formula(
            "(last - first) / (tokens - 1), one mean per request, weighted by tokens - 1",
            lambda s: _weighted(s, _tpot, lambda r: _tokens(r) - 1),
        ),
        "e2e_ms": _E2E,
    },
    "aiperf": {
        "ttft_ms": _TTFT,
        "itl_ms": Formula(
            "(last - first) / (tokens - tokens of the first chunk), one per request", lambda s: _each(s, _aiperf_itl)
        ),
        "icl_ms": _CHUNKS,
        "e2e_ms": _E2E,
    },
    "inference-perf": {
        "ttft_ms": Formula(
            "first token - real send; needs two stamps",
            lambda s: _each(s, lambda r: _ttft(r) if _tokens(r) > 1 else None),
        ),
        "tpot_ms": _TPOT,
        "itl_ms": Formula("gap per token, tokens of one chunk 0 apart, pooled", lambda s: _pool(s, _stamp_gaps)),
        "e2e_ms": _E2E,
    },
    "genai-bench": {"ttft_ms": _TTFT, "tpot_ms": _TPOT, "e2e_ms": _E2E},
    "vllm-bench": {"ttft_ms": _TTFT, "tpot_ms": _TPOT, "itl_ms": _CHUNKS, "e2e_ms": _E2E},
    "sglang-bench": {"ttft_ms": _TTFT, "tpot_ms": _TPOT, "itl_ms": _CHUNKS, "e2e_ms": _E2E},
    "llmperf": {
        "ttft_ms": _TTFT,
        "itl_ms": Formula("(TTFT + all gaps) / chunks, one per request", lambda s: _each(s, _llmperf_gaps)),
        "e2e_ms": _E2E,
    },
}


def recompute(
    streams: Sequence[Stream], tool: str, shares: Sequence[float] = (0.5, 0.95, 0.99)
) -> dict[str, dict[str, float | None]]:
    """The table by ``tool``'s formulas: metric -> mean and quantiles in ms; None where it is not defined."""
    table: dict[str, dict[str, float | None]] = {}
    for name, formula in FORMULAS[tool].items():
        samples = formula.measure(streams)
        row = {"mean": samples.mean(), **{f"p{share * 100:g}": samples.at(share) for share in shares}}
        table[name] = {key: None if value is None or math.isnan(value) else value for key, value in row.items()}
    return table
