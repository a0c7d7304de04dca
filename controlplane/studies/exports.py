"""A study as one page that opens offline."""

from controlplane.experiments.selectors import runs_of
from controlplane.studies.models import Study
from controlplane.studies.selectors import report_of, results_of, search_result, stages_of
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.parse import parse
from scheduler_core.verdict.report.study import study_page


def study_report(study: Study) -> str:
    """The whole study so far: its sentences, the search's front, and every verdict with its runs' figures."""
    results = results_of(study)
    lines = report_of(study)
    runs = [
        parse(RunSummary, run.summary) for stage in stages_of(study) for run in runs_of(stage.experiment) if run.summary
    ]
    return study_page(study.name, lines, [result.verdict for result in results], runs, search_result(study))
