"""From ended runs to an experiment's end: a verdict, or the reason why there is none."""

import logging
from typing import Any

from controlplane.experiments.models import Experiment
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import HeadwayError

log = logging.getLogger(__name__)


def conclude(experiment: Experiment, runs: list[Run]) -> dict[str, Any]:
    """Fields of ``experiment`` at its end, from its ``runs``, all of them ended."""
    cancelled = [run for run in runs if run.state == State.CANCELLED]
    if cancelled:
        return {
            "status": Experiment.Status.CANCELLED,
            "reason": f"{len(cancelled)} of {len(runs)} runs were cancelled",
            "verdict": None,
        }
    summaries = [run.summary for run in runs if run.state == State.SUCCEEDED and run.summary]
    if not summaries:
        return {"status": Experiment.Status.FAILED, "reason": _first_failure(runs), "verdict": None}
    try:
        from scheduler_core.verdict.decide import decide

        spec = parse(ExperimentSpec, experiment.spec)
        verdict = decide(spec, [parse(RunSummary, summary) for summary in summaries])
    except HeadwayError as error:
        reason = f"no verdict: {error}"
    except Exception as error:  # a fault of the verdict must not stop the dispatch process; the page shows it
        log.exception("the verdict of %s could not be computed", experiment.pk)
        reason = f"no verdict: {type(error).__name__}: {error}"
    else:
        return {"status": Experiment.Status.DECIDED, "reason": "", "verdict": verdict.canonical()}
    return {"status": Experiment.Status.FAILED, "reason": reason, "verdict": None}


def _first_failure(runs: list[Run]) -> str:
    run = runs[0]
    return f"no run succeeded; the first, {run.title}: {run.reason or run.state}"
