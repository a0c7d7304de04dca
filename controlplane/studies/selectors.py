"""Reads of studies."""

from django.db.models import QuerySet

from controlplane.access import Person, visible
from controlplane.experiments.models import Experiment
from controlplane.experiments.selectors import spec_of
from controlplane.studies.models import Stage, Study
from scheduler_core.spec.parse import parse
from scheduler_core.spec.studies import GuidedSpec, PredictionSpec, SearchSpec
from scheduler_core.verdict.guided import StageResult, guided_report
from scheduler_core.verdict.prediction import PredictionResult
from scheduler_core.verdict.schema import Verdict
from scheduler_core.verdict.search import SearchResult


def visible_to(user: Person) -> QuerySet[Study]:
    """Studies that ``user`` may see, newest first."""
    return visible(Study.objects.select_related("owner", "run"), user)


def stages_of(study: Study) -> QuerySet[Stage]:
    """Its experiments, in order."""
    return study.stages.select_related("experiment").order_by("number")


def results_of(study: Study) -> list[StageResult]:
    """Its stages that have a verdict."""
    return [
        StageResult(stage.number, spec_of(stage.experiment), parse(Verdict, stage.experiment.verdict))
        for stage in stages_of(study)
        if stage.experiment.status == Experiment.Status.DECIDED and stage.experiment.verdict
    ]


def guided_spec(study: Study) -> GuidedSpec:
    """What a guided plan was asked."""
    return parse(GuidedSpec, study.spec)


def search_spec(study: Study) -> SearchSpec:
    """What a search was asked."""
    return parse(SearchSpec, study.spec)


def search_result(study: Study) -> SearchResult | None:
    """What a search found; None while it has not ended, and of another kind of study."""
    return parse(SearchResult, study.result) if study.result and study.kind == Study.Kind.SEARCH else None


def prediction_spec(study: Study) -> PredictionSpec:
    """What a prediction was asked of."""
    return parse(PredictionSpec, study.spec)


def prediction_result(study: Study) -> PredictionResult | None:
    """What was predicted, and what came of it; None until it is written down, and of another kind of study."""
    return parse(PredictionResult, study.result) if study.result and study.kind == Study.Kind.PREDICTION else None


def report_of(study: Study) -> list[str]:
    """What a guided plan or a prediction says so far, in sentences."""
    if study.kind == Study.Kind.GUIDED:
        return guided_report(results_of(study))
    predicted = prediction_result(study)
    return predicted.report if predicted is not None else []


def unsettled() -> QuerySet[Study]:
    """Studies that may have to go on."""
    return Study.objects.filter(status=Study.Status.RUNNING)
