"""From the records of a run to its tables, audit and summary, in one pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.evidence.benchmark import benchmark
from scheduler_core.evidence.columns import MISSING, IntRows, Ints
from scheduler_core.evidence.fold.drafts import is_speculative
from scheduler_core.evidence.fold.fold import RunFold
from scheduler_core.evidence.fold.layout import CHUNK_INTS, GAP_INTS, Labels, RowTables
from scheduler_core.evidence.lint import linted
from scheduler_core.evidence.metrics.registry import compute_all
from scheduler_core.evidence.schema import AuditReport, Figure, RunSummary
from scheduler_core.evidence.summary import shared_fields
from scheduler_core.evidence.tables.request_table import write_outputs, write_requests
from scheduler_core.evidence.tables.requests import Floats, Requests, never_came
from scheduler_core.evidence.tables.run_tables import (
    ChunkSource,
    GapSource,
    RunTables,
    StepTotals,
    chunks_of_file,
    gaps_of_file,
)
from scheduler_core.evidence.tables.tables import chunks_table, gaps_table, steps_table
from scheduler_core.files import write_json
from scheduler_core.spec.workload import Tier
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import Record, RunStarted
from scheduler_core.types.time import NS_PER_MS, Ns

Alone = Callable[[int, int], Ns]


def finalise(
    records: Iterable[Record],
    *,
    folder: Path,
    arm: str,
    repeat: int,
    tiers: Mapping[str, Tier],
    warmup_share: float = 0.0,
    alone: Alone | None = None,
) -> RunSummary:
    """Write tables, audit and summary of a run into ``folder`` and return the summary.

    Files: requests, steps and gaps (and outputs, where there are real tokens) as Parquet, ``audit.json``,
    ``summary.json`` and ``benchmark.json``; each appears whole, under its final name, or not at all. Only open requests
    are held as objects and a few columns at a time as arrays; all else lies on disk. ``alone`` is the calibrated time
    of a request (prompt tokens, output tokens) by itself, without which slowdowns are not measured. `ExecutorError`
    when the records have no start.
    """
    started, stream = _first(iter(records))
    metadata = {"run": started.run, "attempt": str(started.attempt), "arm": arm, "repeat": str(repeat)}
    labels = Labels()
    steps, gaps = steps_table(folder, labels, metadata), gaps_table(folder, labels, metadata)
    chunks = chunks_table(folder, labels, metadata) if is_speculative(started) else None
    written = RowTables(steps, gaps, chunks)
    folding = _Folding(written, labels, warmup_share=warmup_share, alone=alone, folder=folder)
    rows = folding.play(stream)
    for table in (steps, gaps, chunks):
        if table is not None:
            table.close()
    source = partial(chunks_of_file, folder / "chunks.parquet") if chunks is not None else None
    tables = folding.tables(started, rows, tiers, (partial(gaps_of_file, folder / "gaps.parquet"), source))
    write_requests(folder, tables.requests, metadata)
    if folding.fold.outputs:
        write_outputs(folder, folding.fold.outputs, folding.fold.ties, metadata)
    summary = folding.summary(tables, (arm, repeat))
    audit = summary.audit
    write_json(folder / "audit.json", audit.canonical())
    write_json(folder / "summary.json", summary.canonical())
    write_json(folder / "benchmark.json", benchmark(summary, role=arm))
    return summary


def summarise(
    records: Iterable[Record],
    *,
    arm: str,
    repeat: int,
    tiers: Mapping[str, Tier],
    warmup_share: float = 0.0,
    alone: Alone | None = None,
) -> RunSummary:
    """The summary that `finalise` would return, with no file written; for many short runs."""
    started, stream = _first(iter(records))
    gaps, chunks = IntRows(GAP_INTS), IntRows(CHUNK_INTS) if is_speculative(started) else None
    folding = _Folding(RowTables(_Dropped(), gaps, chunks), Labels(), warmup_share=warmup_share, alone=alone)
    rows = folding.play(stream)
    held = gaps.take()
    source = None if chunks is None else partial(_chunks_held, chunks.take())
    tables = folding.tables(started, rows, tiers, (lambda: [(held["request"], held["gap_ns"] / NS_PER_MS)], source))
    return folding.summary(tables, (arm, repeat))


def _chunks_held(held: Mapping[str, Ints]) -> list[tuple[Ints, Floats, Ints]]:
    gaps = np.where(held["gap_ns"] == MISSING, np.nan, held["gap_ns"] / NS_PER_MS)
    return [(held["request"], gaps, held["tokens"])]


class _Dropped:
    """A table that keeps nothing."""

    def append(self, *values: int) -> None:
        """Take a row and forget it."""


class _Folding:
    """The pass over the records: fold and audit side by side, rows going to the tables as they come."""

    def __init__(
        self,
        tables: RowTables,
        labels: Labels,
        *,
        warmup_share: float,
        alone: Alone | None,
        folder: Path | None = None,
    ) -> None:
        self.alone = alone
        self.labels = labels
        self.totals = StepTotals(tables.steps, lambda: self.fold.window.start_ns is not None)
        self.fold = RunFold(
            self.totals, tables.gaps, labels, chunks=tables.chunks, warmup_share=warmup_share, folder=folder
        )
        self.audit = Audit()

    def play(self, records: Iterable[Record]) -> Mapping[str, Ints]:
        """Take all records; the request columns."""
        fold, audit = self.fold.take, self.audit.take
        for record in records:
            fold(record)
            audit(record)
        return self.fold.end()

    def tables(
        self,
        started: RunStarted,
        rows: Mapping[str, Ints],
        tiers: Mapping[str, Tier],
        waits: tuple[GapSource, ChunkSource | None],
    ) -> RunTables:
        """What metrics are computed from; ``waits`` are gaps between tokens, and chunks where tokens come together."""
        loads, held = self.fold.loads, self.fold.device_bytes
        return RunTables(
            started=started,
            requests=Requests(
                rows,
                self.labels,
                self.fold.window.opens_with,
                degraded_quality=_degraded_quality(started),
                instances=max(1, len(started.instances)),
            ),
            window=self.fold.window,
            steps=self.totals,
            tiers=tiers,
            gaps=waits[0],
            chunks=waits[1],
            load_ns=sum(load.end_ns - load.start_ns for load in loads) if loads else None,
            loads=len(loads),
            device_bytes=None if held == MISSING else held,
            handoffs=self.fold.handoffs,
            power=self.fold.power,
            pools=self.fold.pools,
            outages=self.fold.outages,
            alone=self.alone,
        )

    def summary(self, tables: RunTables, place: tuple[str, int]) -> RunSummary:
        """All figures, audited; ``place`` is (arm, repeat)."""
        figures = compute_all(tables)
        return linted(_summary(tables, self.fold, place, figures, self.audit.report(tables.requests, figures)))


def _degraded_quality(started: RunStarted) -> float | None:
    """The score that the run's policy declares for answers to degraded requests."""
    declared = (started.policy.get("admission") or {}).get("degrade_quality")
    return None if declared is None else float(declared)


def _first(stream: Iterator[Record]) -> tuple[RunStarted, Iterator[Record]]:
    first = next(stream, None)
    if not isinstance(first, RunStarted):
        raise ExecutorError(f"the first record of a run is run_started, got {first.kind if first else 'nothing'}")
    return first, chain((first,), stream)


def _summary(
    tables: RunTables, fold: RunFold, place: tuple[str, int], figures: dict[str, Figure], audit: AuditReport
) -> RunSummary:
    started, requests = tables.started, tables.requests
    finished, decisions = fold.finished, fold.decisions
    return RunSummary(
        **shared_fields(tables, finished, place),
        fingerprint=started.fingerprint,
        outcomes=_outcomes(requests, started.offered),
        unsent=never_came(requests, started.offered),
        steps=finished.steps if finished is not None else tables.steps.steps,
        ties=sum(len(positions) for positions in fold.ties.values()),
        outputs_digest=fold.outputs_digest(),
        decisions_digest=decisions.hexdigest(),
        initial_cache_blocks=decisions.initial_cache_blocks,
        metrics=figures,
        pools=tables.use.pools(),
        audit=audit,
    )


def _outcomes(requests: Requests, offered: int) -> dict[str, int]:
    """Requests by outcome; those that never came because the run stopped first are cut off, so the sum is exact."""
    counts = requests.by_outcome()
    counts[Outcome.CUT_OFF.value] += sum(never_came(requests, offered).values())
    return counts
