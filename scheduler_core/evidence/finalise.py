"""From the records of a run to its tables, audit and summary, in one pass."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from scheduler_core.evidence.audit import Audit
from scheduler_core.evidence.benchmark import benchmark
from scheduler_core.evidence.classes import class_summaries
from scheduler_core.evidence.columns import MISSING
from scheduler_core.evidence.fold import Labels, RunFold
from scheduler_core.evidence.metrics import compute_all
from scheduler_core.evidence.request_table import write_outputs, write_requests
from scheduler_core.evidence.requests import Requests
from scheduler_core.evidence.run_tables import RunTables, StepTotals
from scheduler_core.evidence.schema import AuditReport, Figure, RunSummary
from scheduler_core.evidence.slo import tier_summaries
from scheduler_core.evidence.tables import SpillingTable, gaps_table, steps_table
from scheduler_core.spec.workload import Tier
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import Record, RunStarted


def finalise(
    records: Iterable[Record],
    *,
    folder: Path,
    arm: str,
    repeat: int,
    tiers: Mapping[str, Tier],
    warmup_share: float = 0.0,
) -> RunSummary:
    """Write tables, audit and summary of a run into ``folder`` and return the summary.

    Files: requests, steps and gaps (and outputs, where there are real tokens) as Parquet, ``audit.json``,
    ``summary.json`` and ``benchmark.json``; each appears whole, under its final name, or not at all. Open requests
    are held as objects, everything else as arrays or on disk. `ExecutorError` when the records have no start.
    """
    stream = iter(records)
    started, stream = _first(stream)
    metadata = {"run": started.run, "attempt": str(started.attempt), "arm": arm, "repeat": str(repeat)}
    folding = _Folding(folder, metadata, warmup_share)
    for record in stream:
        folding.take(record)
    tables = folding.close(started, tiers)
    write_requests(folder, tables.requests, metadata)
    if folding.fold.outputs:
        write_outputs(folder, folding.fold.outputs, folding.fold.ties, metadata)
    figures = compute_all(tables)
    audit = folding.audit.report(tables.requests, figures)
    summary = _summary(tables, folding.fold, (arm, repeat), figures, audit)
    write_json(folder / "audit.json", audit.canonical())
    write_json(folder / "summary.json", summary.canonical())
    write_json(folder / "benchmark.json", benchmark(summary, role=arm))
    return summary


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write ``data`` to ``path`` by way of a temporary name beside it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


class _Folding:
    """The pass over the records: fold and audit side by side, rows going to disk as they come."""

    def __init__(self, folder: Path, metadata: Mapping[str, str], warmup_share: float) -> None:
        self.labels = Labels()
        self._steps: SpillingTable = steps_table(folder, self.labels, metadata)
        self._gaps: SpillingTable = gaps_table(folder, self.labels, metadata)
        self.totals = StepTotals(self._steps, lambda: self.fold.window.start_ns is not None)
        self.fold = RunFold(self.totals, self._gaps, self.labels, warmup_share=warmup_share)
        self.audit = Audit()
        self._gaps_file = folder / "gaps.parquet"

    def take(self, record: Record) -> None:
        """Take one record."""
        self.fold.take(record)
        self.audit.take(record)

    def close(self, started: RunStarted, tiers: Mapping[str, Tier]) -> RunTables:
        """Close the tables and hand over what metrics are computed from."""
        rows = self.fold.end()
        self._steps.close()
        self._gaps.close()
        loads = self.fold.loads
        return RunTables(
            started=started,
            requests=Requests(rows, self.labels, self.fold.window.opens_with),
            window=self.fold.window,
            steps=self.totals,
            tiers=tiers,
            gaps_file=self._gaps_file,
            load_ns=sum(load.end_ns - load.start_ns for load in loads) if loads else None,
            loads=len(loads),
            device_bytes=None if self.fold.device_bytes == MISSING else self.fold.device_bytes,
        )


def _first(stream: Iterator[Record]) -> tuple[RunStarted, Iterator[Record]]:
    first = next(stream, None)
    if not isinstance(first, RunStarted):
        raise ExecutorError(f"the first record of a run is run_started, got {first.kind if first else 'nothing'}")
    return first, chain((first,), stream)


def _summary(
    tables: RunTables, fold: RunFold, place: tuple[str, int], figures: dict[str, Figure], audit: AuditReport
) -> RunSummary:
    started, requests = tables.started, tables.requests
    finished = fold.finished
    digests = fold.digests
    return RunSummary(
        run=started.run,
        attempt=started.attempt,
        arm=place[0],
        repeat=place[1],
        plan_digest=started.plan_digest,
        policy_digest=started.policy_digest,
        policy=started.policy,
        target=started.target,
        level=started.level,
        source=started.source,
        fingerprint=started.fingerprint,
        complete=finished is not None and finished.complete,
        offered=started.offered,
        measured=int(requests.measured.sum()),
        outcomes=_outcomes(requests, started.offered),
        duration_s=(finished.at_ns if finished is not None else tables.window.end_ns) / 1e9,
        steps=finished.steps if finished is not None else tables.steps.steps,
        ties=sum(len(positions) for positions in fold.ties.values()),
        outputs_digest=fold.outputs_digest(),
        lengths_digest=requests.lengths_digest(),
        decisions_digest=digests.decisions.hexdigest(),
        initial_cache_blocks=digests.initial_cache_blocks,
        longest_gap_causes=requests.longest_gap_causes(),
        metrics=figures,
        tiers=tier_summaries(requests, tables.tiers),
        classes=class_summaries(requests),
        cold_requests=int(requests.cold.sum()),
        audit=audit,
    )


def _outcomes(requests: Requests, offered: int) -> dict[str, int]:
    """Requests by outcome; those that never arrived because the run stopped first are cut off, so the sum is exact."""
    labels = requests.labels.outcomes
    counts = {outcome.value: int((requests.rows["outcome"] == labels.get(outcome)).sum()) for outcome in Outcome}
    counts[Outcome.CUT_OFF.value] += max(0, offered - len(requests))
    return counts
