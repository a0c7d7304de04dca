"""Where the time of single requests went, read from what a run stored."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from controlplane.errors import ConflictError
from controlplane.evidence.exports import copied_table, records_of
from controlplane.runs.models import Run
from scheduler_core.evidence.path.report import PathReport, path_report
from scheduler_core.evidence.path.slowest import slowest
from scheduler_core.types.errors import InputError


def slowest_requests(*, run: Run, by: str) -> list[dict[str, Any]]:
    """The requests of the current attempt with the largest ``by``; `ConflictError` without a table of requests."""
    with TemporaryDirectory(prefix="headway-slowest-") as folder:
        return slowest(copied_table(run, "requests", Path(folder)), by)


def path_of(*, run: Run, request: int) -> PathReport:
    """The critical path of one request of the current attempt.

    Raises:
        ConflictError: no records are stored, they are too many, they know no token of the request, or they come from a
            server, which shows no intervals.
    """
    if (run.job.get("target") or {}).get("server") is not None:
        raise ConflictError(f"{run.pk} measured a server from outside: what its steps were spent on, it does not show")
    with TemporaryDirectory(prefix="headway-path-") as folder:
        try:
            return path_report(records_of(run, Path(folder), purpose="a path"), request)
        except InputError as error:
            raise ConflictError(f"{run.pk} shows no path: {error}") from None
