"""Figures of runs with their formulas, and by the formulas of other load tools."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView
from controlplane.api.fields import ChoiceField, Input
from controlplane.api.v1.experiments import experiment_for
from controlplane.api.v1.runs import run_for
from controlplane.evidence.exports import summary_of
from controlplane.experiments.selectors import summaries_by_arm
from controlplane.runs.models import Run
from scheduler_core.evidence.formulas.side_by_side import Arms, FormulaTable, by_arm, side_by_side
from scheduler_core.evidence.formulas.tools import FORMULAS


class MetricsFilter(Input):
    """Whose formulas are wanted."""

    formulas = ChoiceField(
        list(FORMULAS),
        required=False,
        help_text="Recompute by this tool's formulas, beside Headway's figures; absent: every figure of Headway alone.",
    )


class RunMetrics(ApiView):
    """The figures of a run."""

    @extend_schema(operation_id="runs_metrics", tags=["runs"], parameters=[MetricsFilter], responses=FormulaTable)
    def get(self, request: Request, pk: str) -> Response:
        """Figures with formula and unit; no arm while the run has none."""
        run = run_for(request, pk)
        summaries = [summary_of(run)] if run.kind == Run.Kind.ARM and run.summary else []
        return _answer(self, request, by_arm(summaries))


class ExperimentMetrics(ApiView):
    """The figures of an experiment's arms."""

    @extend_schema(
        operation_id="experiments_metrics",
        tags=["experiments"],
        parameters=[MetricsFilter],
        responses=FormulaTable,
    )
    def get(self, request: Request, pk: str) -> Response:
        """Figures by arm, means over the runs that have any, with formula and unit."""
        return _answer(self, request, summaries_by_arm(experiment_for(request, pk)))


def _answer(view: ApiView, request: Request, arms: Arms) -> Response:
    wanted = view.read(MetricsFilter, request.query_params)
    return Response(side_by_side(arms, wanted.get("formulas")).canonical())
