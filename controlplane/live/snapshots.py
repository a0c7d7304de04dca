"""What viewers are told, read from the database: the same for the socket and for polling."""

from typing import Any

from django.db.models import Max, QuerySet

from controlplane.access import Person
from controlplane.evidence.models import SampleChunk
from controlplane.evidence.selectors import samples_after
from controlplane.experiments.models import ArmRun, Experiment
from controlplane.live.protocol import BATCH_SAMPLES
from controlplane.runs import selectors as runs
from controlplane.runs.lifecycle import TERMINAL_STATES
from controlplane.runs.models import Run

_RUN_FIELDS = (
    "id", "owner_id", "state", "reason", "attempt", "cancel_requested_at", "started_at", "finished_at", "done",
    "total", "eta_s",
)  # fmt: skip


def run_status(run: Run) -> dict[str, Any]:
    """State and progress of a run."""
    return {
        "id": run.id,
        "state": run.state,
        "label": run.get_state_display(),
        "reason": run.reason,
        "attempt": run.attempt,
        "ended": run.state in TERMINAL_STATES,
        "cancelling": run.cancel_requested_at is not None and run.state not in TERMINAL_STATES,
        "done": run.done,
        "total": run.total,
        "eta_s": run.eta_s,
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
    }


def run_message(
    user: Person, run_id: str, *, attempt: int | None, after: int, limit: int = BATCH_SAMPLES
) -> dict[str, Any] | None:
    """Status of a run and its next samples after ``after``; None when there is no such run for ``user``.

    When ``attempt`` is not the current one the client's samples belong to another execution: ``mode`` is then
    ``snapshot`` and the samples start from the first, else ``delta``. ``latest`` is the newest stored number, so
    ``catching_up`` tells whether more follow at once.
    """
    found = runs.visible_to(user).select_related(None).only(*_RUN_FIELDS).filter(pk=run_id).first()
    if found is None:
        return None
    resumes = attempt == found.attempt and after > 0
    after = after if resumes else 0
    latest = SampleChunk.objects.filter(run=found, attempt=found.attempt).aggregate(last=Max("last_seq"))["last"] or 0
    samples = samples_after(run=found, attempt=found.attempt, seq=after, limit=limit) if latest > after else []
    sent = samples[-1]["seq"] if samples else after
    return {
        "type": "run",
        "run": run_id,
        "attempt": found.attempt,
        "mode": "delta" if resumes else "snapshot",
        "after": after,
        "samples": samples,
        "last": sent,
        "latest": latest,
        "catching_up": sent < latest and bool(samples),
        "status": run_status(found),
    }


def _arm_runs(experiment_id: str) -> QuerySet[ArmRun]:
    rows = ArmRun.objects.filter(arm__experiment_id=experiment_id).select_related("arm", "run")
    return rows.only(
        "repeat", "load", "arm__name", "arm__position", "arm__experiment_id", *(f"run__{f}" for f in _RUN_FIELDS)
    )


def experiment_message(user: Person, experiment_id: str) -> dict[str, Any] | None:
    """Status of an experiment and of each of its runs; None when there is no such experiment for ``user``."""
    found = Experiment.objects.filter(pk=experiment_id).only("id", "owner_id", "status", "decided_at", "spec").first()
    if found is None or not (user.is_authenticated and user.is_active):
        return None
    rows = [
        {"arm": row.label(found.spec), "repeat": row.repeat, **run_status(row.run)} for row in _arm_runs(experiment_id)
    ]
    return {
        "type": "experiment",
        "experiment": experiment_id,
        "status": found.status,
        "label": found.get_status_display(),
        "ended": found.status in (Experiment.Status.DECIDED, Experiment.Status.FAILED, Experiment.Status.CANCELLED),
        "runs": rows,
        **progress(rows),
    }


def progress(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs ended out of all, and the share of the work done counting the parts of unfinished runs."""
    ended = sum(row["ended"] for row in rows)
    parts = sum(1.0 if row["ended"] else min(1.0, row["done"] / row["total"]) if row["total"] else 0.0 for row in rows)
    return {"runs_ended": ended, "runs_total": len(rows), "done_share": parts / len(rows) if rows else 0.0}
