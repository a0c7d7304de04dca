"""Scratch folder, job file and command of one attempt."""

import logging
import shutil
from pathlib import Path

from django.conf import settings

from controlplane.endpoints.access import access_to
from controlplane.runs.lifecycle import LEASED_STATES
from controlplane.runs.models import Run
from controlplane.workloads.selectors import copy_file
from scheduler_core.spec.job import CalibrationJob, RunJob, SearchJob
from scheduler_core.spec.parse import parse

log = logging.getLogger(__name__)


def prepare(run: Run) -> tuple[Path, list[str]]:
    """Make the attempt's empty scratch folder with job and plan in it; the folder and the command to start."""
    folder = Path(settings.SCRATCH) / run.pk / str(run.attempt)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    common = {**run.job, "run": run.pk, "attempt": run.attempt, "workdir": str(folder)}
    job: RunJob | CalibrationJob | SearchJob
    if run.kind == Run.Kind.CALIBRATION:
        job, command = _with_server(parse(CalibrationJob, common)), settings.RUN_CALIBRATE_COMMAND
    else:
        assert run.plan is not None  # every run that is no calibration plays one
        common["plan_file"] = str(copy_file(run.plan.file, folder / "plan.jsonl.gz"))
        if run.kind == Run.Kind.SEARCH:
            job, command = parse(SearchJob, common), settings.RUN_SEARCH_COMMAND
        else:
            job, command = _with_access(parse(RunJob, common)), settings.RUN_COMMAND
    job_file = folder / "job.json"
    job_file.touch(mode=0o600)  # it may hold the secret of an endpoint
    job_file.write_text(job.model_dump_json(indent=1))
    return folder, [*command, str(job_file)]


def _with_access(job: RunJob) -> RunJob:
    """``job`` with what is needed to reach its arm's server, which is nowhere stored."""
    if job.target.server is None:
        return job
    return job.model_copy(update={"access": access_to(job.target.server.deployment(job.arm))})


def _with_server(job: CalibrationJob) -> CalibrationJob:
    """``job`` with what is needed to reach the server that it probes."""
    return job if job.server is None else job.model_copy(update={"access": access_to(job.server)})


def inside(folder: Path, name: str) -> Path:
    """The regular file ``name`` of a work folder; ``ValueError`` for anything outside it."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise ValueError(f"{name!r} is not a file of the run's work folder")
    return path


def clear(run_id: str, attempt: int) -> None:
    """Remove an attempt's scratch folder, and its run's when that was the last."""
    folder = Path(settings.SCRATCH) / run_id
    shutil.rmtree(folder / str(attempt), ignore_errors=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def clear_abandoned() -> int:
    """Remove scratch folders that no leased attempt owns, left by workers that were killed; how many."""
    root, removed = Path(settings.SCRATCH), 0
    held = set(Run.objects.filter(state__in=LEASED_STATES).values_list("pk", "attempt"))
    for folder in root.glob("run_*/*"):
        if folder.name.isdigit() and (folder.parent.name, int(folder.name)) not in held:
            clear(folder.parent.name, int(folder.name))
            removed += 1
    if removed:
        log.info("removed %d scratch folders of attempts that ended without their worker", removed)
    return removed
