"""From the records of a run against a server to its tables, audit and summary, in one pass."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from scheduler_core.evidence.benchmark import benchmark
from scheduler_core.evidence.client.audit import ClientAudit
from scheduler_core.evidence.client.figures import client_figures
from scheduler_core.evidence.client.fold import ClientFold, ClientTables
from scheduler_core.evidence.client.observations import Observations
from scheduler_core.evidence.client.requests import ClientRequests
from scheduler_core.evidence.columns import Ints
from scheduler_core.evidence.fold.layout import Labels
from scheduler_core.evidence.lint import linted
from scheduler_core.evidence.schema import NOTES, RunSummary
from scheduler_core.evidence.summary import shared_fields
from scheduler_core.evidence.tables.request_table import write_requests
from scheduler_core.evidence.tables.requests import never_came
from scheduler_core.evidence.tables.run_tables import RunTables, StepTotals, chunks_of_file, gaps_of_file
from scheduler_core.evidence.tables.tables import TableWriter, chunks_table, gaps_table
from scheduler_core.files import write_json
from scheduler_core.spec.workload import Tier
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import Record, RunStarted
from scheduler_core.types.time import NS_PER_MS


def finalise_client(
    records: Iterable[Record],
    *,
    folder: Path,
    arm: str,
    repeat: int,
    tiers: Mapping[str, Tier],
    warmup_share: float = 0.0,
) -> RunSummary:
    """Write tables, audit and summary of a run against a server into ``folder`` and return the summary.

    Files: requests, gaps, chunks and observations as Parquet, ``audit.json``, ``summary.json`` and
    ``benchmark.json``. `ExecutorError` when the records have no start.
    """
    stream = iter(records)
    started = next(stream, None)
    if not isinstance(started, RunStarted):
        raise ExecutorError("the records of a run begin with run_started, these do not")
    metadata = {"run": started.run, "attempt": str(started.attempt), "arm": arm, "repeat": str(repeat)}
    labels, audit = Labels(), ClientAudit()
    gaps, chunks = gaps_table(folder, labels, metadata), chunks_table(folder, labels, metadata)
    fold = ClientFold(ClientTables(gaps, chunks), labels, warmup_share=warmup_share, folder=folder)
    for record in chain((started,), stream):
        fold.take(record)
        audit.take(record)
    rows = fold.end()
    gaps.close()
    chunks.close()
    _write_observations(folder, fold.observations, metadata)
    tables = _tables(fold, started, rows, tiers, folder)
    write_requests(folder, tables.requests, metadata)
    summary = linted(_summary(tables, fold, (arm, repeat), audit))
    write_json(folder / "audit.json", summary.audit.canonical())
    write_json(folder / "summary.json", summary.canonical())
    write_json(folder / "benchmark.json", benchmark(summary, role=arm))
    return summary


class _NoSteps:
    def append(self, *values: int) -> None:
        """A server's steps are not seen."""


def _tables(
    fold: ClientFold, started: RunStarted, rows: Mapping[str, Ints], tiers: Mapping[str, Tier], folder: Path
) -> RunTables:
    loads = fold.loads
    return RunTables(
        started=started,
        requests=ClientRequests(rows, fold.labels, fold.window.opens_with),
        window=fold.window,
        steps=StepTotals(_NoSteps(), lambda: False),
        tiers=tiers,
        gaps=lambda: gaps_of_file(folder / "gaps.parquet"),
        load_ns=sum(load.end_ns - load.start_ns for load in loads) if loads else None,
        loads=len(loads),
        device_bytes=None,
        chunks=lambda: chunks_of_file(folder / "chunks.parquet"),
    )


def _summary(tables: RunTables, fold: ClientFold, place: tuple[str, int], audit: ClientAudit) -> RunSummary:
    started, requests = tables.started, tables.requests
    figures = client_figures(tables, fold)
    deployed = fold.deployed
    never = never_came(requests, started.offered)
    outcomes = Counter(requests.by_outcome()) + Counter(never)
    unsent = Counter(requests.by_outcome(requests.rows["tries"] == 0)) + Counter(never)
    return RunSummary(
        **shared_fields(tables, fold.finished, place),
        fingerprint={**started.fingerprint, NOTES: _notes(fold)},
        outcomes={outcome.value: outcomes[outcome.value] for outcome in Outcome},
        unsent=dict(unsent),
        steps=0,
        ties=0,
        outputs_digest=None,
        metrics=figures,
        deployment={} if deployed is None else _deployment(deployed.server, deployed.version, deployed.settings),
        void=fold.effort.void if fold.effort is not None else "",
        audit=audit.report(requests, figures),
    )


def _deployment(server: str, version: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {"server": server, "version": version, **{f"settings.{name}": value for name, value in settings.items()}}


def _notes(fold: ClientFold) -> list[str]:
    """What a reader of the figures must know."""
    notes = list(fold.deployed.notes) if fold.deployed is not None else []
    if fold.deployed is not None and fold.deployed.cache:
        notes.append(f"prefix cache: {fold.deployed.cache}")
    if fold.estimated:
        notes.append(
            f"{fold.estimated} answers did not say how many tokens each chunk had; their totals are spread over chunks"
        )
    effort = fold.effort
    if effort is not None and effort.not_fed_back:
        notes.append(f"{effort.not_fed_back} later turns contain planned answers: the server's could not be fed back")
    notes += _reconciled(fold)
    notes += _profiled(fold)
    if fold.observations.restarts:
        notes.append(f"counters of the server went back {fold.observations.restarts} times: it was restarted")
    for name, source in fold.observations.sources.items():
        notes += [f"metrics of {name}: {problem}" for problem in source.problems[:1]]
    return notes


def _profiled(fold: ClientFold) -> list[str]:
    """What became of the profiler's window, which is no part of the run."""
    found = fold.profiled
    if found is None:
        return []
    if found.problem:
        return [f"no profile of the server: {found.problem}"]
    return [
        f"after the run the server's profiler looked at {found.requests} requests in {found.seconds:.3g} s; what it "
        "wrote lies with the server"
    ]


def _reconciled(fold: ClientFold) -> list[str]:
    """Per-request data decide; where the server's own count of finished requests differs, that is said."""
    counted = fold.observations.growth("finished", fold.first_due_ns)
    if counted is None or round(counted) == fold.answered:
        return []
    return [f"the server counted {round(counted)} finished requests, the client {fold.answered}"]


# --- tables of their own --------------------------------------------------------------------------------------------


def _write_observations(folder: Path, seen: Observations, metadata: Mapping[str, str]) -> None:
    """``observations.parquet``: one row a value and look, in long form, so that sources may export different things."""
    rows: list[tuple[str, str, str, float, str, float]] = [
        (name, source.role, source.pool, at / NS_PER_MS, value_name, value)
        for name, source in seen.sources.items()
        for at, values in source.looks
        for value_name, value in values.items()
    ]
    names = ("source", "role", "pool", "at_ms", "name", "value")
    kinds = (pa.string(), pa.string(), pa.string(), pa.float64(), pa.string(), pa.float64())
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    writer = TableWriter(folder / "observations.parquet", metadata)
    writer.write({name: pa.array(column, kind) for name, kind, column in zip(names, kinds, columns, strict=True)})
    writer.close()
