"""A run for other people and programs: offline report, timeline, tables, exchange form, made anew from what is stored.

Nothing here is kept: each export is written into a folder of the caller's, table group by table group or record by
record, so that memory does not grow with the run.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from django.db.models import Sum

from controlplane.errors import ConflictError
from controlplane.evidence.models import Artifact, Segment
from controlplane.evidence.selectors import artifacts
from controlplane.runs.models import Run
from controlplane.workloads.selectors import copy_file
from scheduler_core.evidence.benchmark import benchmark
from scheduler_core.evidence.export.csv_tables import write_csv
from scheduler_core.evidence.export.timeline import write_timeline
from scheduler_core.evidence.records.segments import read_records
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.parse import parse
from scheduler_core.types.records import Record
from scheduler_core.verdict.report.page import run_page

TABLES = ("requests", "steps", "gaps")
RECORDS_MAX_BYTES = 256 * 1024 * 1024  # read for one answer; viewers open no larger timeline


@dataclass(frozen=True)
class RunExport:
    """One kind of file: its name, what it is, and how it is written to a path.

    ``write`` raises `ConflictError` when the run has not the evidence for it.
    """

    name: str
    title: str
    write: Callable[[Run, Path], None]


def write_export(*, run: Run, name: str, folder: Path) -> Path | None:
    """Write export ``name`` of the run's current attempt into ``folder``; None when there is no such kind.

    Raises:
        ConflictError: the evidence that it is made from is not there, or is too much; says which.
    """
    kind = RUN_EXPORTS.get(name)
    if kind is None:
        return None
    target = folder / name
    try:
        kind.write(run, target)
    except FileNotFoundError:
        raise ConflictError(f"{name} needs a file that is no longer in the storage") from None
    return target


def offered(run: Run) -> list[RunExport]:
    """The exports that the stored evidence of the current attempt allows."""
    has = set(artifacts(run=run).values_list("name", flat=True))
    allowed = {f"{table}.csv" for table in TABLES if f"{table}.parquet" in has}
    if run.summary:
        allowed |= {"report.html", "benchmark.json"}
    if 0 < _segments_bytes(run) <= RECORDS_MAX_BYTES:
        allowed.add("timeline.json")
    return [kind for name, kind in RUN_EXPORTS.items() if name in allowed]


def summary_of(run: Run) -> RunSummary:
    """The stored summary. `ConflictError` when the run has none."""
    if not run.summary:
        raise ConflictError(f"{run.pk} has no summary: only a run that measured something to its end has one")
    return parse(RunSummary, run.summary)


def _report(run: Run, target: Path) -> None:
    target.write_text(run_page(summary_of(run)), encoding="utf-8")


def _benchmark(run: Run, target: Path) -> None:
    place = getattr(run, "arm_run", None)
    role = "candidate" if place is not None and not place.arm.is_baseline else "baseline"
    target.write_text(json.dumps(benchmark(summary_of(run), role=role), indent=1), encoding="utf-8")


def records_of(run: Run, folder: Path, *, purpose: str) -> Iterator[Record]:
    """The records of the current attempt, in order, by way of copies in ``folder``; ``purpose`` is for the refusal.

    Raises:
        ConflictError: there are none, or more than `RECORDS_MAX_BYTES`.
    """
    size = _segments_bytes(run)
    if not size:
        raise ConflictError(f"{run.pk} has no records in attempt {run.attempt}: {purpose} is drawn from them")
    if size > RECORDS_MAX_BYTES:
        limit = RECORDS_MAX_BYTES // 2**20
        raise ConflictError(
            f"{run.pk} has {size // 2**20} MiB of records; {purpose} is drawn of at most {limit} MiB. "
            "Its tables say the same in less"
        )
    return read_records(_one_by_one(run, folder))


def records_digest(run: Run) -> str:
    """Digest over the segments of the current attempt: equal exactly while no record was added."""
    found = hashlib.sha256(f"{run.pk}/{run.attempt}".encode())
    for segment in _segments(run):
        found.update(segment.sha256.encode())
    return found.hexdigest()


def stored_table(run: Run, name: str) -> Artifact:
    """Table ``name`` of the current attempt as it is stored; `ConflictError` when the run has none."""
    stored = artifacts(run=run).filter(name=f"{name}.parquet").first()
    if stored is None:
        raise ConflictError(f"{run.pk} has no {name} table in attempt {run.attempt}: it is written at a run's end")
    return stored


def copied_table(run: Run, name: str, folder: Path) -> Path:
    """A copy of table ``name`` of the current attempt in ``folder``; `ConflictError` when the run has none."""
    return copy_file(stored_table(run, name).file, folder / f"{name}.parquet")


def _timeline(run: Run, target: Path) -> None:
    write_timeline(records_of(run, target.parent, purpose="a timeline"), target)


def _table(name: str) -> Callable[[Run, Path], None]:
    def write(run: Run, target: Path) -> None:
        copy = copied_table(run, name, target.parent)
        write_csv(copy, target)
        copy.unlink()

    return write


def _segments(run: Run) -> list[Segment]:
    return list(run.segments.filter(attempt=run.attempt).order_by("number"))


def _segments_bytes(run: Run) -> int:
    return run.segments.filter(attempt=run.attempt).aggregate(total=Sum("bytes"))["total"] or 0


def _one_by_one(run: Run, folder: Path) -> Iterator[Path]:
    """Local copies of the segments; each is gone when the next is asked for."""
    for segment in _segments(run):
        copy = copy_file(segment.file, folder / "segment.jsonl")
        yield copy
        copy.unlink()


RUN_EXPORTS: dict[str, RunExport] = {
    kind.name: kind
    for kind in (
        RunExport("report.html", "Report as one page that opens offline", _report),
        RunExport("timeline.json", "Timeline for Perfetto and chrome://tracing", _timeline),
        *(RunExport(f"{table}.csv", f"Table of {table} as CSV", _table(table)) for table in TABLES),
        RunExport("benchmark.json", "Figures as inference-benchmark/v1", _benchmark),
    )
}
