"""From measured requests to the summary that a verdict reads; what the tool did not measure is typed as absent."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.evidence.bootstrap import within_run_errors
from scheduler_core.evidence.columns import MISSING, Ints
from scheduler_core.evidence.fold.layout import REQUEST_INTS, SEGMENT_COLUMNS, Labels
from scheduler_core.evidence.formulas.tools import by_tool
from scheduler_core.evidence.imported.measured import Measured, MeasuredRun
from scheduler_core.evidence.lint import linted
from scheduler_core.evidence.metrics.client import rate
from scheduler_core.evidence.metrics.metric import absent
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import NOTES, Absence, Figure, RunSummary
from scheduler_core.evidence.tables.requests import Floats, Maker, Requests
from scheduler_core.evidence.tables.run_tables import RunTables, StepTotals
from scheduler_core.evidence.tables.slo import tier_summaries
from scheduler_core.evidence.window import Window
from scheduler_core.spec.workload import Tier
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import RunStarted
from scheduler_core.types.time import ns_from_s

# Figures that a client's file can give; everything else is not measured.
MEASURABLE = ("ttft", "tpot", "tpot_steady", "longest_gap", "e2e", "itl")
RUN_FIGURES = (
    "throughput_tokens_per_s", "throughput_finished_tokens_per_s", "throughput_requests_per_s", "goodput_rps",
    "attainment_share", "completion_share", "failure_share", "cut_off_share", "window_s", "stall_share",
    "decode_jitter_ms",
)  # fmt: skip


@dataclass(frozen=True)
class ImportedRequests(Requests):
    """Requests whose parts of time nobody measured, but for the queue where a server logged it."""

    queue_measured: bool = False

    def _segments(self) -> dict[str, Maker]:
        known = {"queue_wait_ms"} if self.queue_measured else set()
        makers = super()._segments()
        unseen = partial(self._never, "ms", Absence.NOT_MEASURED)
        return {name: make if name in known else unseen for name, make in makers.items()}


class _NoTable:
    def append(self, *values: int) -> None:
        """Steps were not seen."""


def imported_summary(
    run: MeasuredRun, *, name: str, arm: str, repeat: int = 0, tiers: Mapping[str, Tier] | None = None
) -> RunSummary:
    """Summary of a run measured elsewhere, level and source ``imported``."""
    tables = _tables(run, name, tiers or {"default": Tier()})
    requests = tables.requests
    gaps = any(request.token_gaps_s for request in run.requests)
    figures = _figures(tables, gaps=gaps, scheduled=not run.sent_on_answers())
    counts = {outcome.value: sum(r.outcome is outcome for r in run.requests) for outcome in Outcome}
    summary = RunSummary(
        run=name,
        attempt=1,
        arm=arm,
        repeat=repeat,
        plan_digest=run.plan_digest(),
        policy_digest=arm,
        policy={"policy": arm},
        target={"imported": {"tool": run.tool}},
        level="imported",
        source="imported",
        fingerprint={NOTES: list(run.notes)},
        complete=True,
        offered=len(run.requests),
        measured=len(run.requests),
        outcomes=counts,
        duration_s=tables.window_s,
        steps=0,
        ties=0,
        outputs_digest=None,
        lengths_digest=requests.lengths_digest(),
        output_tokens=requests.finished_tokens(),
        reasons=requests.reasons(),
        within_run_errors=within_run_errors(requests),
        metrics=figures,
        by_tool=by_tool(tables),
        tiers=tier_summaries(requests, tables.tiers),
        cold_requests=0,
        audit=Audit().tables_report(requests, figures),
    )
    return linted(summary)


def _offered(tables: RunTables, *, scheduled: bool) -> Figure:
    """The rate of intended send times, where they were anyone's intention."""
    if not scheduled:
        return absent("requests/s", Absence.NOT_APPLICABLE, "each request was sent when another had ended")
    return rate(tables.requests.rows["arrival_ns"])


def _figures(tables: RunTables, *, gaps: bool, scheduled: bool) -> dict[str, Figure]:
    """Registry figures that the file can give; the rest as not measured, gaps too where chunks hid them."""
    queue = isinstance(tables.requests, ImportedRequests) and tables.requests.queue_measured
    figures = {}
    for name, metric in METRICS.items():
        if name == "offered_rps":
            figures[name] = _offered(tables, scheduled=scheduled)
            continue
        stem = name.rpartition("_p")[0] or name
        of_gaps = name.startswith(("longest_gap", "itl", "tpot_steady", "decode_jitter", "stall_share"))
        known = name in RUN_FIGURES or stem in MEASURABLE or name.startswith(tuple(f"{m}_mean" for m in MEASURABLE))
        known = (known and (gaps or not of_gaps)) or (queue and name.startswith("queue_wait"))
        if known or (name == "longest_gap_max_ms" and gaps):
            figures[name] = metric.compute(tables)
        else:
            figures[name] = Figure(value=None, unit=metric.unit, absence=Absence.NOT_MEASURED, note="not in the file")
    return figures


def _tables(run: MeasuredRun, name: str, tiers: Mapping[str, Tier]) -> RunTables:
    labels = Labels()
    rows = _rows(run, labels)
    window = Window(0.0, start_ns=0, end_ns=int(rows["ended_ns"].max()))
    window.tokens = window.tokens_at_end = sum(request.output_tokens for request in run.requests)
    started = RunStarted(
        run=name, attempt=1, plan_digest=run.plan_digest(), policy_digest="", policy={}, target={}, level="imported",
        source="imported", offered=len(run.requests), kv_blocks=0, block_size=1, token_budget=0,
    )  # fmt: skip
    return RunTables(
        started=started,
        requests=ImportedRequests(
            rows, labels, 0, queue_measured=all(request.queue_s is not None for request in run.requests)
        ),
        window=window,
        steps=StepTotals(_NoTable(), lambda: False),
        tiers=tiers,
        gaps=lambda: _gap_columns(run),
        load_ns=None,
        loads=0,
        device_bytes=None,
        chunks=lambda: _chunk_columns(run),
    )


def _gap_columns(run: MeasuredRun) -> Iterator[tuple[Ints, Floats]]:
    for index, request in enumerate(run.requests):
        gaps = request.token_gaps_s
        if gaps:
            yield np.full(len(gaps), index, dtype=np.int64), np.asarray(gaps) * 1e3


def _chunk_columns(run: MeasuredRun) -> Iterator[tuple[Ints, Floats, Ints]]:
    """Chunks of the requests whose waits were kept; how many tokens each had is known where each had one."""
    for index, request in enumerate(run.requests):
        gaps = () if request.output_tokens == 1 else request.gaps_s
        if gaps is not None:
            waits = np.asarray((np.nan, *gaps)) * 1e3
            each = int(len(waits) == request.output_tokens)
            yield np.full(len(waits), index), waits, np.full(len(waits), each)


def _rows(run: MeasuredRun, labels: Labels) -> dict[str, Ints]:
    rows = {name: np.zeros(len(run.requests), dtype=np.int64) for name in (*REQUEST_INTS, *SEGMENT_COLUMNS)}
    for name in (
        "longest_gap_cause", "stall_cause", "hit_tokens", "queue_first_ns", "prefill_first_ns", "degraded",
        "prefilled_tokens",
    ):  # fmt: skip
        rows[name][:] = MISSING
    for index, request in enumerate(run.requests):
        for name, value in _row(index, request, labels).items():
            rows[name][index] = value
    return rows


def _row(index: int, request: Measured, labels: Labels) -> dict[str, int]:
    arrival = ns_from_s(request.arrival_s)
    first = MISSING if request.ttft_s is None else arrival + ns_from_s(request.ttft_s)
    last = first if request.e2e_s is None else arrival + ns_from_s(request.e2e_s)
    gaps = request.token_gaps_s
    return {
        "request": index,
        "tenant": labels.tenants.code("default"),
        "tier": labels.tiers.code("default"),
        "prompt_tokens": request.prompt_tokens,
        "output_limit": request.output_tokens,
        "output_tokens": request.output_tokens,
        "arrival_ns": arrival,
        "ended_ns": max(last, arrival),
        "first_token_ns": first,
        "last_token_ns": last,
        "first_gap_ns": ns_from_s(gaps[0]) if gaps else MISSING,
        "longest_gap_ns": ns_from_s(max(gaps)) if gaps else MISSING,
        "longest_gap_index": int(np.argmax(gaps)) + 1 if gaps else 0,
        "queue_ns": ns_from_s(request.queue_s or 0.0),
        "send_delay_ns": ns_from_s(request.send_delay_s),
        "outcome": labels.outcomes.code(request.outcome.value),
        "stage": labels.stages.code(""),
        "reason": labels.reasons.code(request.reason),
    }
