"""Where the time of single requests went, read from what a run stored.

Each answer means reading a whole table, or all records, so it is kept under the digest of what it was read from.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from controlplane.errors import ConflictError
from controlplane.evidence.exports import copied_table, records_digest, records_of, stored_table
from controlplane.evidence.keeping import kept
from controlplane.runs.models import Run
from scheduler_core.evidence.path.report import PathReport, path_report
from scheduler_core.evidence.path.slowest import slowest
from scheduler_core.types.errors import InputError


def slowest_requests(*, run: Run, by: str) -> list[dict[str, Any]]:
    """The requests of the current attempt with the largest ``by``; `ConflictError` without a table of requests."""

    def read() -> list[dict[str, Any]]:
        with TemporaryDirectory(prefix="headway-slowest-") as folder:
            return slowest(copied_table(run, "requests", Path(folder)), by)

    rows: list[dict[str, Any]] = kept(f"slowest:{stored_table(run, 'requests').sha256}:{by}", read)
    return rows


def path_of(*, run: Run, request: int) -> PathReport:
    """The critical path of one request of the current attempt.

    Raises:
        ConflictError: no records are stored, they are too many, they know no token of the request, or they come from a
            server, which shows no intervals.
    """
    if (run.job.get("target") or {}).get("server") is not None:
        raise ConflictError(f"{run.pk} measured a server from outside: what its steps were spent on, it does not show")
    told = kept(f"path:{records_digest(run)}:{request}", lambda: _read_path(run, request))
    if "refusal" in told:
        raise ConflictError(f"{run.pk} shows no path: {told['refusal']}")
    return PathReport.model_validate(told)


def _read_path(run: Run, request: int) -> dict[str, Any]:
    """The path as plain data, or the ``refusal`` of records that know none: it takes as long to find out."""
    with TemporaryDirectory(prefix="headway-path-") as folder:
        try:
            return path_report(records_of(run, Path(folder), purpose="a path"), request).canonical()
        except InputError as error:
            return {"refusal": str(error)}
