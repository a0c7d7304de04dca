"""The figures of a run as other load tools would print them, so that their tables can be reconciled with ours.

The same name means different numbers elsewhere: some count the first token into TPOT, some pool gaps per stream chunk,
some take one mean per request. Every formula reads the answers that Headway's own latency figures are of (warm,
finished, measured), so that what differs is the formula alone. As the tools were in 2026: GuideLLM 0.8, AIPerf 0.13,
inference-perf, genai-bench 0.0.5, vLLM 0.33 and SGLang 0.5.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scheduler_core.evidence.columns import MISSING, Ints
from scheduler_core.evidence.metrics.metric import absent, present
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.requests import Floats
from scheduler_core.evidence.tables.run_tables import RunTables
from scheduler_core.evidence.tables.tables import Mask, ms
from scheduler_core.types.quantile import Ascending, quantile
from scheduler_core.types.reasons import Outcome

SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
_UNSEEN = "which tokens came together was not kept"


@dataclass(frozen=True)
class Answers:
    """What the formulas read of a run: arrays with one value an answer, times in ms from the real send."""

    run: RunTables

    @cached_property
    def rows(self) -> Mask:
        """Warm finished measured requests of which a first token was seen."""
        requests = self.run.requests
        return np.asarray(requests.warm_finished & (requests.rows["first_token_ns"] != MISSING), dtype=np.bool_)

    def until(self, stamp: str) -> Floats:
        """Real send to ``stamp``: ``first_token``, ``last_token``, or ``ended`` when the answer was over."""
        rows = self.run.requests.rows
        return ms((rows[f"{stamp}_ns"] - rows["arrival_ns"] - rows["send_delay_ns"])[self.rows])

    @property
    def decode(self) -> Floats:
        """First to last token."""
        rows = self.run.requests.rows
        return ms((rows["last_token_ns"] - rows["first_token_ns"])[self.rows])

    @property
    def tokens(self) -> Ints:
        """Output tokens."""
        return self.run.requests.rows["output_tokens"][self.rows]

    @cached_property
    def first_chunk(self) -> Ints:
        """Tokens of the first chunk; 0 where only its time was kept, `MISSING` where not even that."""
        return self.run.first_chunk_tokens[self.rows]

    @property
    def empty(self) -> int:
        """Finished answers of which no token was seen."""
        requests = self.run.requests
        return int((requests.warm_finished & (requests.rows["first_token_ns"] == MISSING)).sum())


@dataclass(frozen=True)
class Interpolated:
    """Samples whose quantiles lie linearly between neighbours, as Headway's do; ``total`` is their sum."""

    values: Ascending
    total: float

    @classmethod
    def of(cls, values: Floats) -> "Interpolated":
        """From values in any order."""
        return cls(np.sort(values), float(values.sum()))

    def __len__(self) -> int:
        return len(self.values)

    def mean(self) -> float:
        """Their mean."""
        return self.total / len(self.values)

    def quantile(self, share: float) -> float:
        """A quantile."""
        return quantile(self.values, share)


@dataclass(frozen=True)
class NearestRank:
    """Weighted samples; a quantile is the least value with at least that share of the weight at or below it."""

    values: Floats
    weights: Floats | Ints

    def __len__(self) -> int:
        return len(self.values)

    def mean(self) -> float:
        """Their weighted mean."""
        return float(np.average(self.values, weights=self.weights))

    def quantile(self, share: float) -> float:
        """A quantile."""
        order = np.argsort(self.values, kind="stable")
        reached = np.cumsum(self.weights[order])
        place = int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-12)))
        return float(self.values[order[place]])


@dataclass(frozen=True)
class _AfterZeros:
    """``rest`` behind ``zeros`` values of 0, ascending."""

    zeros: int
    rest: Ascending

    def __len__(self) -> int:
        return self.zeros + len(self.rest)

    def __getitem__(self, place: int, /) -> float:
        return 0.0 if place < self.zeros else float(self.rest[place - self.zeros])


Samples = Interpolated | NearestRank


@dataclass(frozen=True, slots=True)
class Latency:
    """A tool's formula of the figures ``STEM_mean_ms``, ``STEM_p50_ms`` and so on; ``measure`` gives None unmeasured.

    ``called`` is the tool's own name, ``differs`` why its numbers are not Headway's (empty where they are).
    """

    stem: str
    called: str
    text: str
    differs: str
    measure: Callable[[Answers], Samples | None]

    @property
    def names(self) -> list[str]:
        """The figures that it gives."""
        return [f"{self.stem}_{kind}_ms" for kind in ("mean", *SHARES)]

    def figures(self, answers: Answers) -> Iterator[Figure]:
        """A figure for each of `names`."""
        samples = self.measure(answers)
        if samples is None:
            yield from (absent("ms", Absence.NOT_MEASURED, _UNSEEN) for _ in self.names)
        elif not len(samples):
            yield from (absent("ms", Absence.NOT_APPLICABLE, "not defined (0 samples)", 0) for _ in self.names)
        else:
            values = [samples.mean(), *(samples.quantile(share) for share in SHARES.values())]
            yield from (present(value, "ms", len(samples)) for value in values)


@dataclass(frozen=True, slots=True)
class Attained:
    """A tool's formula of the share of requests that met their objectives, over those that ``of`` counts."""

    called: str
    text: str
    differs: str
    of: Callable[[RunTables], Mask]

    @property
    def names(self) -> list[str]:
        """The figure that it gives."""
        return ["attainment_share"]

    def figures(self, answers: Answers) -> Iterator[Figure]:
        """The figure."""
        run = answers.run
        counted = run.requests.measured & self.of(run)
        count = int(counted.sum())
        if not count:
            yield absent("share", Absence.NOT_APPLICABLE, "not defined (0 requests)", 0)
        else:
            yield present(int((counted & run.attainment.met).sum()) / count, "share", count)


Formula = Latency | Attained


def _each(stamp: str) -> Callable[[Answers], Samples]:
    return lambda answers: Interpolated.of(answers.until(stamp))


def _unweighted(stamp: str) -> Callable[[Answers], Samples]:
    def measure(answers: Answers) -> Samples:
        values = answers.until(stamp)
        if stamp == "first_token":
            values = np.concatenate([np.zeros(answers.empty), values])
        return NearestRank(values, np.ones(len(values)))

    return measure


def _tpot(answers: Answers) -> Samples:
    several = answers.tokens > 1
    return Interpolated.of(answers.decode[several] / (answers.tokens[several] - 1))


def _tpot_until_end(answers: Answers) -> Samples:
    several = answers.tokens > 1
    rest = (answers.until("ended") - answers.until("first_token"))[several]
    return Interpolated.of(rest / (answers.tokens[several] - 1))


def _tpot_with_first(answers: Answers) -> Samples:
    return NearestRank(answers.until("last_token") / answers.tokens, answers.tokens)


def _itl_by_request(answers: Answers) -> Samples:
    several = answers.tokens > 1
    gaps = answers.tokens[several] - 1
    return NearestRank(answers.decode[several] / gaps, gaps)


def _itl_after_first_chunk(answers: Answers) -> Samples | None:
    first = answers.first_chunk
    if (first <= 0).any():
        return None
    rest = answers.tokens - first
    return Interpolated.of(answers.decode[rest > 0] / rest[rest > 0])


def _chunk_gaps(answers: Answers) -> Samples | None:
    if (answers.first_chunk == MISSING).any():
        return None
    return Interpolated(answers.run.chunk_gap_ms, float(answers.decode.sum()))


def _stamp_gaps(answers: Answers) -> Samples | None:
    """One gap a token; of a chunk of several, all but one are 0. Where there are more chunks than tokens, none is."""
    chunks = _chunk_gaps(answers)
    if not isinstance(chunks, Interpolated):
        return None
    zeros = max(0, int((answers.tokens - 1).sum()) - len(chunks))
    return Interpolated(_AfterZeros(zeros, chunks.values), chunks.total)


def _ttft_of_several(answers: Answers) -> Samples:
    return Interpolated.of(answers.until("first_token")[answers.tokens > 1])


def _e2e_per_token(answers: Answers) -> Samples:
    return Interpolated.of(answers.until("ended") / answers.tokens)


def _finished(run: RunTables) -> Mask:
    return run.requests.finished


def _sent(run: RunTables) -> Mask:
    """Where a client kept its tries; elsewhere everything that was offered was sent."""
    tries = run.requests.rows.get("tries")
    return np.ones(len(run.requests), dtype=np.bool_) if tries is None else np.asarray(tries > 0, dtype=np.bool_)


def _not_given_up(run: RunTables) -> Mask:
    labels = run.requests.labels.outcomes
    given_up = [labels.get(outcome) for outcome in (Outcome.CANCELLED, Outcome.CUT_OFF)]
    return ~np.isin(run.requests.rows["outcome"], given_up)


def _everything(run: RunTables) -> Mask:
    return np.ones(len(run.requests), dtype=np.bool_)


_LATE = "counts from the real send: how late the client was is not in it"
_RANK = "takes quantiles without interpolation"
_TO_END = f"{_LATE}, and up to the end of the stream instead of the last token"
_CHUNKED = "a chunk of several tokens is one gap; Headway spreads its wait over its tokens"

_FIRST = "first chunk - real send"
_LAST = "last chunk - real send"
_END = "end of the answer - real send"
_PER_TOKEN = "(last token - first token) / (tokens - 1), one per request"
_PER_CHUNK = "gap per stream chunk, pooled over requests"

FORMULAS: dict[str, tuple[Formula, ...]] = {
    "guidellm": (
        Latency("ttft", "time_to_first_token_ms", "first token - real send; an answer without a token counts 0",
                f"{_LATE}; a missing first token is 0 there and a failure here; {_RANK}", _unweighted("first_token")),
        Latency("tpot", "time_per_output_token_ms", "(last token - real send) / tokens, weighted by tokens",
                f"the wait for the first token is inside, long answers weigh more; {_RANK}", _tpot_with_first),
        Latency("itl", "inter_token_latency_ms",
                "(last token - first token) / (tokens - 1), one mean per request, weighted by tokens - 1",
                f"a mean per request hides single long gaps, which Headway pools; {_RANK}", _itl_by_request),
        Latency("e2e", "request_latency", _END, f"{_TO_END}; {_RANK}", _unweighted("ended")),
        Attained("goodput share", "requests that met every objective / (finished + failed)",
                 "cancelled and cut off requests are left out", _not_given_up),
    ),
    "vllm-bench": (
        Latency("ttft", "ttft", _FIRST, _LATE, _each("first_token")),
        Latency("tpot", "tpot", "(e2el - ttft) / (tokens - 1), one per request", "", _tpot),
        Latency("itl", "itl", _PER_CHUNK, _CHUNKED, _chunk_gaps),
        Latency("e2e", "e2el", _LAST, _LATE, _each("last_token")),
    ),
    "sglang-bench": (
        Latency("ttft", "ttft", f"{_FIRST}, after its own wait for concurrency", _LATE, _each("first_token")),
        Latency("tpot", "tpot", "(e2e_latency - ttft) / (tokens - 1), one per request", "", _tpot),
        Latency("itl", "itl", _PER_CHUNK, _CHUNKED, _chunk_gaps),
        Latency("e2e", "e2e_latency", _LAST, _LATE, _each("last_token")),
        Attained("goodput share", "requests that met every objective / sent",
                 "requests that were never sent are left out", _sent),
    ),
    "inference-perf": (
        Latency("ttft", "time_to_first_token", "first token - real send, of answers with two tokens or more",
                f"{_LATE}; answers of one token are left out", _ttft_of_several),
        Latency("tpot", "time_per_output_token", _PER_TOKEN, "", _tpot),
        Latency("itl", "inter_token_latency", "gap per token, tokens of one chunk 0 apart, pooled over requests",
                "tokens that came together give zeros; Headway spreads a chunk's wait over its tokens", _stamp_gaps),
        Latency("e2e", "request_latency", _END, _TO_END, _each("ended")),
        Latency("e2e_per_token", "normalized_time_per_output_token", f"({_END}) / tokens, one per request",
                "Headway has no such figure", _e2e_per_token),
        Attained("goodput share", "requests that met every objective / finished",
                 "failed requests vanish from the whole", _finished),
    ),
    "genai-bench": (
        Latency("ttft", "ttft", _FIRST, _LATE, _each("first_token")),
        Latency("tpot", "tpot", "(e2e_latency - ttft) / (tokens - 1), one per request",
                "ends with the stream instead of the last token", _tpot_until_end),
        Latency("e2e", "e2e_latency", _END, _TO_END, _each("ended")),
    ),
    "aiperf": (
        Latency("ttft", "time_to_first_token", "first chunk with content - real send", _LATE, _each("first_token")),
        Latency("itl", "inter_token_latency",
                "(last chunk - first chunk) / (tokens - tokens of the first chunk), one mean per request",
                "a mean per request, like Headway's TPOT; single long gaps do not show", _itl_after_first_chunk),
        Latency("chunk_gap", "inter_chunk_latency", _PER_CHUNK, "", _chunk_gaps),
        Latency("e2e", "request_latency", "last chunk with content - real send", _LATE, _each("last_token")),
        Attained("good request fraction", "requests that met every objective / all, failed ones too", "", _everything),
    ),
}  # fmt: skip


def by_tool(run: RunTables) -> dict[str, dict[str, Figure]]:
    """Every tool's figures of ``run``, by Headway's names for them."""
    answers = Answers(run)
    return {
        tool: {
            name: figure
            for formula in formulas
            for name, figure in zip(formula.names, formula.figures(answers), strict=True)
        }
        for tool, formulas in FORMULAS.items()
    }
