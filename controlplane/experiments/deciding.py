"""From ended runs to an experiment's end: a verdict, or the reason why there is none."""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from controlplane.evidence.selectors import artifacts
from controlplane.experiments.models import Experiment
from controlplane.experiments.selectors import spec_of
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from controlplane.workloads.selectors import local_copy
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import HeadwayError
from scheduler_core.verdict.comparable import Output
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.isolation import decide_isolation
from scheduler_core.verdict.load_sweep import decide_sweep
from scheduler_core.verdict.outputs import read_outputs

log = logging.getLogger(__name__)


def conclude(experiment: Experiment, runs: list[Run]) -> dict[str, Any]:
    """Fields of ``experiment`` at its end, from its ``runs``, all of them ended."""
    cancelled = [run for run in runs if run.state == State.CANCELLED]
    if cancelled:
        reason = f"{len(cancelled)} of {len(runs)} runs were cancelled"
        return {"status": Experiment.Status.CANCELLED, "reason": reason, "verdict": None}
    finished = [run for run in runs if run.state == State.SUCCEEDED and run.summary]
    if not finished:
        return {"status": Experiment.Status.FAILED, "reason": _first_failure(runs), "verdict": None}
    try:
        verdict = _decide(experiment, finished)
    except HeadwayError as error:
        reason = f"no verdict: {error}"
    except Exception as error:  # a fault of the verdict must not stop the dispatch process; the page shows it
        log.exception("the verdict of %s could not be computed", experiment.pk)
        reason = f"no verdict: {type(error).__name__}: {error}"
    else:
        return {"status": Experiment.Status.DECIDED, "reason": "", "verdict": verdict}
    return {"status": Experiment.Status.FAILED, "reason": reason, "verdict": None}


def _decide(experiment: Experiment, finished: list[Run]) -> dict[str, Any]:
    by_id = {run.pk: run for run in finished}

    @cache
    def outputs(run_id: str) -> Mapping[int, Output]:
        stored = artifacts(run=by_id[run_id]).filter(name="outputs.parquet").first()
        if stored is None:
            return {}
        with local_copy(stored.file) as path:
            return read_outputs(path)

    spec = spec_of(experiment)
    if spec.sweep is not None:
        return decide_sweep(spec, _by_load(finished)).canonical()
    if spec.isolation is not None:
        return decide_isolation(spec, _by_load(finished)).canonical()
    return decide(spec, [parse(RunSummary, run.summary) for run in finished], outputs=outputs).canonical()


def _by_load(finished: list[Run]) -> dict[float, list[RunSummary]]:
    points: dict[float, list[RunSummary]] = {}
    for run in finished:
        points.setdefault(run.arm_run.load or 0.0, []).append(parse(RunSummary, run.summary))
    return points


def _first_failure(runs: list[Run]) -> str:
    run = runs[0]
    return f"no run succeeded; the first, {run.title}: {run.reason or run.state}"
