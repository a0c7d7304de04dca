"""Folds the records of a run against a server into request columns, gaps and chunks."""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler_core.evidence.client.observations import Observations
from scheduler_core.evidence.client.streams import Stream
from scheduler_core.evidence.columns import MISSING, GrowingColumns, Ints
from scheduler_core.evidence.fold.layout import REQUEST_INTS, SEGMENT_COLUMNS, Labels, TakesRow
from scheduler_core.evidence.fold.sweep import SEND_DELAY, UNATTRIBUTED
from scheduler_core.evidence.window import Window
from scheduler_core.types.client_records import Answered, ClientEffort, Deployed, Observed, Profiled, Sent, Streamed
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import Arrived, Finished, Loaded, Record, RunFinished, RunStarted
from scheduler_core.types.time import Ns

CLIENT_INTS = ("connect_ns", "tries", "chunks", "longest_gap_end_ns", "queue_told")

# What a server did during a request's longest wait, by its counters; nothing is guessed where it exports none.
CAUSE_PREEMPTED = "a preemption in the server"
CAUSE_PREFILL = "prefill of other requests"
CAUSE_QUEUED = "requests were waiting in the server"
CAUSE_NONE = "nothing that the server exports"


@dataclass
class ClientTables:
    """Where rows go as they come: gaps per token, and chunks under their own name."""

    gaps: TakesRow
    chunks: TakesRow


class ClientFold:
    """Takes the records of one run in order."""

    def __init__(
        self, tables: ClientTables, labels: Labels, *, warmup_share: float = 0.0, folder: Path | None = None
    ) -> None:
        self.labels = labels
        self.window = Window(warmup_share)
        self.requests = GrowingColumns((*REQUEST_INTS, *SEGMENT_COLUMNS, *CLIENT_INTS), folder)
        self.observations = Observations()
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.deployed: Deployed | None = None
        self.effort: ClientEffort | None = None
        self.profiled: Profiled | None = None
        self.loads: list[Loaded] = []
        self.estimated = 0
        self.answered = 0
        self.first_due_ns: Ns = 0
        self._tables = tables
        self._open: dict[int, Stream] = {}

    def take(self, record: Record) -> None:
        """Fold one record; kinds that only a target with steps writes are refused by the audit, not here."""
        match record:
            case Streamed():
                self._streamed(record)
            case Arrived():
                if not self._open and not self.answered:
                    self.first_due_ns = record.at_ns
                self._open[record.request] = Stream(record)
                self.window.arrived(record.request, record.at_ns)
            case Sent():
                stream = self._open.get(record.request)
                if stream is not None:
                    stream.sent(record.at_ns, record.connect_ns)
            case Answered():
                self._answered(record)
            case Finished():
                self._finished(record)
            case Observed():
                self.observations.take(record)
            case _:
                self._about_the_run(record)

    def _about_the_run(self, record: Record) -> None:
        match record:
            case RunStarted():
                self.started = record
                self.window.opens_with = int(self.window.warmup_share * record.offered)
            case Deployed():
                self.deployed = record
            case Loaded():
                self.loads.append(record)
            case Profiled():
                self.profiled = record
            case ClientEffort():
                self.effort = record
            case RunFinished():
                self.finished = record

    def end(self) -> Mapping[str, Ints]:
        """Close what is still open (the records stopped early) as cut off; the request columns, by index."""
        for request, stream in list(self._open.items()):
            at = stream.chunks[-1][0] if stream.chunks else stream.arrived.seen_ns
            self._finished(Finished(at, request, Outcome.CUT_OFF, "records_ended", "records_ended", stream.tokens))
        return self._with_causes(self.requests.sorted_by("request"))

    def _streamed(self, record: Streamed) -> None:
        for request, at, tokens in record.rows:
            stream = self._open.get(request)
            if stream is not None:
                stream.chunks.append((at, tokens))
                self.window.emitted(at, tokens)

    def _answered(self, record: Answered) -> None:
        stream = self._open.get(record.request)
        if stream is None:
            return
        stream.prompt_tokens, stream.cached_tokens = record.prompt_tokens, record.cached_tokens
        stream.queue_ns = record.queue_ns
        if record.counts is not None:
            before = stream.chunks
            if stream.correct(record.counts):
                self.estimated += 1
                for (at, told), (_, tokens) in zip(before, stream.chunks, strict=True):
                    self.window.emitted(at, tokens - told)

    def _finished(self, record: Finished) -> None:
        stream = self._open.pop(record.request, None)
        if stream is None:
            return  # ended twice or never arrived: the audit reports it
        self.window.ended(record.request, record.at_ns)
        if record.outcome == Outcome.FINISHED:
            self.answered += 1
            for token, (at, gap) in enumerate(stream.token_gaps(), start=1):
                self._tables.gaps.append(record.request, token, at, gap, MISSING)
        previous: Ns | None = None
        for number, (at, tokens) in enumerate(stream.chunks):
            gap = MISSING if previous is None else at - previous
            self._tables.chunks.append(record.request, number, at, tokens, gap)
            previous = at
        self._close_row(record, stream)

    def _close_row(self, record: Finished, stream: Stream) -> None:
        arrived, labels = stream.arrived, self.labels
        first = stream.chunks[0][0] if stream.chunks else None
        last = stream.chunks[-1][0] if stream.chunks else None
        longest = stream.longest()
        first_gap = next((gap for _, gap in stream.token_gaps()), None)
        end = last if record.outcome == Outcome.FINISHED and last is not None else record.at_ns
        sent = stream.sent_ns if stream.sent_ns is not None else end
        delay = min(sent, end) - arrived.at_ns
        queued = min(stream.queue_ns or 0, end - arrived.at_ns - delay)
        values = dict.fromkeys((*REQUEST_INTS, *SEGMENT_COLUMNS, *CLIENT_INTS), 0)
        values |= dict.fromkeys(
            ("longest_gap_cause", "stall_cause", "queue_first_ns", "prefill_first_ns", "degraded"), MISSING
        )
        values |= {
            "request": record.request,
            "tenant": labels.tenants.code(arrived.tenant),
            "tier": labels.tiers.code(arrived.tier),
            "prompt_tokens": arrived.prompt_tokens if stream.prompt_tokens is None else stream.prompt_tokens,
            "output_limit": arrived.output_limit,
            "output_tokens": stream.tokens,
            "hit_tokens": _int(stream.cached_tokens),
            "prefilled_tokens": _int(stream.prefilled_tokens),
            "arrival_ns": arrived.at_ns,
            "ended_ns": record.at_ns,
            "first_token_ns": _int(first),
            "last_token_ns": _int(last),
            "first_gap_ns": _int(first_gap),
            "longest_gap_ns": MISSING if longest is None else longest[0],
            "longest_gap_index": 0 if longest is None else longest[1],
            "longest_gap_end_ns": MISSING if longest is None else longest[2],
            "outcome": labels.outcomes.code(record.outcome),
            "stage": labels.stages.code(record.stage),
            "reason": labels.reasons.code(record.reason),
            "cold": int(any(arrived.at_ns < load.end_ns for load in self.loads)),
            f"{SEND_DELAY}_ns": delay,
            f"{IntervalClass.QUEUE}_ns": queued,
            f"{UNATTRIBUTED}_ns": end - arrived.at_ns - delay - queued,
            "queue_told": int(stream.queue_ns is not None),
            "connect_ns": stream.connect_ns,
            "tries": stream.tries,
            "chunks": len(stream.chunks),
        }
        self.requests.append(*(values[name] for name in self.requests.names))

    def _with_causes(self, rows: Mapping[str, Ints]) -> Mapping[str, Ints]:
        """Name what the server's counters did during each longest wait, where it exports any."""
        if not self.observations.exported("preemptions") and not self.observations.exported("prompt_tokens"):
            return rows
        causes = rows["longest_gap_cause"].copy()
        gaps, ends = rows["longest_gap_ns"], rows["longest_gap_end_ns"]
        for row in (gaps > 0).nonzero()[0]:
            end = int(ends[row])
            cause = self._cause(end - int(gaps[row]), end)
            if cause:
                causes[row] = self.labels.causes.code(cause)
        return ChainMap({"longest_gap_cause": causes}, rows)  # type: ignore[arg-type]  # only the first is written to

    def _cause(self, start_ns: Ns, end_ns: Ns) -> str:
        seen = self.observations
        preempted = seen.between("preemptions", start_ns, end_ns)
        prompts = seen.between("prompt_tokens", start_ns, end_ns)
        if preempted is None and prompts is None:
            return ""
        if preempted:
            return CAUSE_PREEMPTED
        if prompts:
            return CAUSE_PREFILL
        return CAUSE_QUEUED if (seen.most("waiting", start_ns, end_ns) or 0) > 0 else CAUSE_NONE


def _int(value: int | None) -> int:
    return MISSING if value is None else value
