"""A verdict for other people and programs: offline report, text for a pull request, JUnit for a build server."""

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.errors import ConflictError
from controlplane.experiments.models import Experiment
from controlplane.experiments.selectors import runs_of
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.parse import parse
from scheduler_core.verdict.report.junit import junit
from scheduler_core.verdict.report.page import experiment_page
from scheduler_core.verdict.report.pull_request import pull_request
from scheduler_core.verdict.schema import Verdict


@dataclass(frozen=True)
class ExperimentExport:
    """One kind of file: its name, what it is, and its text."""

    name: str
    title: str
    text: Callable[[Experiment, Verdict], str]


def export_text(*, experiment: Experiment, name: str) -> str | None:
    """Export ``name`` of a decided experiment; None when there is no such kind.

    Raises:
        ConflictError: the experiment has no verdict; says why.
    """
    kind = EXPERIMENT_EXPORTS.get(name)
    if kind is None:
        return None
    if not experiment.verdict:
        why = experiment.reason or f"it is {experiment.get_status_display().lower()}"
        raise ConflictError(f"{experiment.pk} has no verdict to export: {why}")
    return kind.text(experiment, parse(Verdict, experiment.verdict))


def _report(experiment: Experiment, verdict: Verdict) -> str:
    runs = [parse(RunSummary, run.summary) for run in runs_of(experiment) if run.summary]
    return experiment_page(verdict, runs)


EXPERIMENT_EXPORTS: dict[str, ExperimentExport] = {
    kind.name: kind
    for kind in (
        ExperimentExport("report.html", "Report as one page that opens offline", _report),
        ExperimentExport("verdict.md", "Text for a pull request", lambda _, verdict: pull_request(verdict)),
        ExperimentExport("verdict.xml", "JUnit for a build server", lambda _, verdict: junit(verdict)),
    )
}
