"""Studies: guided plans, searches and predictions, whose experiments follow from one another."""

from io import BytesIO
from typing import Any

from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView, ListView, created
from controlplane.api.downloads import attachment
from controlplane.api.fields import (
    Link,
    ListFilter,
    MultipleChoiceField,
    Nothing,
    PredictionResultField,
    SearchResultField,
    StudySpecField,
)
from controlplane.api.parsers import BoundedJSONParser, YAMLParser
from controlplane.studies import selectors, services
from controlplane.studies.exports import study_report
from controlplane.studies.models import Stage, Study
from scheduler_core.spec.studies import GuidedSpec, PredictionSpec, SearchSpec

TAGS = ["studies"]
_WORKLOAD = {"profile": "azure-2023-conv", "requests": 60, "rate_rps": 4, "lengths_scale": 0.25}
GUIDED = OpenApiExample("from static batching up", request_only=True, value={"name": "tuning", "workload": _WORKLOAD})
SEARCH = OpenApiExample(
    "token budget and batch size",
    request_only=True,
    value={
        "name": "budgets",
        "workload": _WORKLOAD,
        "space": {"batch.token_budget": {"low": 128, "high": 4096}, "batch.size": {"values": [8, 16, 32]}},
        "method": "tpe",
        "trials": 40,
        "confirm": {"target": {"torch": {}}, "best": 2},
    },
)


PREDICTION = OpenApiExample(
    "two step budgets of a launched server",
    request_only=True,
    value={
        "profile": "small-cpu",
        "experiment": {
            "name": "budgets",
            "workload": {**_WORKLOAD, "tiers": {"default": {"ttft_ms": 1000}}},
            "target": {"server": {"launch": "small-cpu"}},
            "arms": {
                "budget-2048": {"policy": "vllm_v1", "batch": {"token_budget": 2048}},
                "budget-256": {"policy": "vllm_v1", "batch": {"token_budget": 256}},
            },
            "sweep": {"loads": [1, 2, 4, 8]},
        },
    },
)


class StageOut(serializers.ModelSerializer[Stage]):
    """One experiment of a study."""

    title = serializers.SerializerMethodField()
    experiment = serializers.CharField(source="experiment_id")
    url = Link("experiment", pk="experiment_id")
    status = serializers.CharField(source="experiment.status")

    class Meta:
        model = Stage
        fields = ("number", "title", "experiment", "url", "status")

    def get_title(self, stage: Stage) -> str:
        return services.stage_title(stage.study, stage)


class StudyOut(serializers.ModelSerializer[Study]):
    """A study as lists show it."""

    url = Link("study", pk="pk")
    owner = serializers.CharField(source="owner.username")
    run = serializers.CharField(source="run_id", allow_null=True, help_text="Of a search: the run that plays it.")

    class Meta:
        model = Study
        fields = ("id", "url", "kind", "name", "owner", "status", "reason", "run", "created_at", "ended_at")


class StudyDetailOut(StudyOut):
    """A study with its spec, its experiments, and what it found so far."""

    spec = StudySpecField()
    stages = StageOut(many=True)
    report = serializers.SerializerMethodField(help_text="Of a guided plan or a prediction: so far, in sentences.")
    result = serializers.SerializerMethodField(help_text="Of a search: what it found.")
    prediction = serializers.SerializerMethodField(
        help_text="Of a prediction: as written down before the first measurement, and what came of it."
    )

    class Meta(StudyOut.Meta):
        fields = (*StudyOut.Meta.fields, "spec", "stages", "report", "result", "prediction")  # type: ignore[assignment]

    def get_report(self, study: Study) -> list[str]:
        return selectors.report_of(study)

    @extend_schema_field(SearchResultField(allow_null=True))
    def get_result(self, study: Study) -> dict[str, Any] | None:
        return study.result if study.kind == Study.Kind.SEARCH else None

    @extend_schema_field(PredictionResultField(allow_null=True))
    def get_prediction(self, study: Study) -> dict[str, Any] | None:
        return study.result if study.kind == Study.Kind.PREDICTION else None


class StudyFilter(ListFilter):
    """Filters of the list of studies."""

    kind = MultipleChoiceField(choices=Study.Kind.choices, required=False)
    status = MultipleChoiceField(choices=Study.Status.choices, required=False)


class Studies(ListView):
    """All studies."""

    filter_class = StudyFilter

    @extend_schema(operation_id="studies_list", tags=TAGS, parameters=[StudyFilter], responses=StudyOut(many=True))
    def get(self, request: Request) -> Response:
        """Studies, newest first."""
        rows = selectors.visible_to(request.user)
        for name in ("kind", "status"):
            if self.wanted.get(name):
                rows = rows.filter(**{f"{name}__in": self.wanted[name]})
        return self.page(rows, StudyOut)


class GuidedPlans(ApiView):
    """Guided plans."""

    parser_classes = [BoundedJSONParser, YAMLParser]

    @extend_schema(
        operation_id="studies_guided", tags=TAGS, request=GuidedSpec, responses={201: StudyDetailOut}, examples=[GUIDED]
    )
    def post(self, request: Request) -> Response:
        """Begin a guided plan: its stages are submitted one after the other, each from the verdict before."""
        return _created(request, services.start_guided(owner=self.person, data=request.data))


class Searches(ApiView):
    """Searches."""

    parser_classes = [BoundedJSONParser, YAMLParser]

    @extend_schema(
        operation_id="studies_search", tags=TAGS, request=SearchSpec, responses={201: StudyDetailOut}, examples=[SEARCH]
    )
    def post(self, request: Request) -> Response:
        """Queue a search for policies; with `confirm` the best are then tried in an experiment."""
        return _created(request, services.start_search(owner=self.person, data=request.data))


class Predictions(ApiView):
    """Predictions."""

    parser_classes = [BoundedJSONParser, YAMLParser]

    @extend_schema(
        operation_id="studies_predict",
        tags=TAGS,
        request=PredictionSpec,
        responses={201: StudyDetailOut},
        examples=[PREDICTION],
    )
    def post(self, request: Request) -> Response:
        """Predict a load sweep from a profile; once that is written down, measure it on the real target."""
        return _created(request, services.start_prediction(owner=self.person, data=request.data))


class StudyDetail(ApiView):
    """One study."""

    @extend_schema(operation_id="studies_show", tags=TAGS, responses=StudyDetailOut)
    def get(self, request: Request, pk: str) -> Response:
        """One study: spec, experiments, what it found."""
        return Response(StudyDetailOut(_study(request, pk), context={"request": request}).data)


class StudyCancel(ApiView):
    """Cancelling a study."""

    @extend_schema(operation_id="studies_cancel", tags=TAGS, request=Nothing, responses={202: StudyDetailOut})
    def post(self, request: Request, pk: str) -> Response:
        """Cancel what is open and make no further experiment; 409 when the study has ended."""
        self.read(Nothing)
        study = services.cancel_study(study=_study(request, pk), user=self.person)
        return Response(StudyDetailOut(study, context={"request": request}).data, status=202)


class StudyResume(ApiView):
    """Going on with a study."""

    @extend_schema(operation_id="studies_resume", tags=TAGS, request=Nothing, responses={202: StudyDetailOut})
    def post(self, request: Request, pk: str) -> Response:
        """Go on with a study that failed or was cancelled; 409 otherwise."""
        self.read(Nothing)
        study = services.resume_study(study=_study(request, pk), user=self.person)
        return Response(StudyDetailOut(study, context={"request": request}).data, status=202)


class StudyReport(ApiView):
    """A study as one page."""

    @extend_schema(operation_id="studies_report", tags=TAGS, responses={(200, "application/octet-stream"): bytes})
    def get(self, request: Request, pk: str) -> HttpResponseBase:
        """Download the study so far as one page that opens offline."""
        data = study_report(_study(request, pk)).encode()
        return attachment(BytesIO(data), name=f"{pk}-report.html", size=len(data))


def _study(request: Request, pk: str) -> Study:
    return get_object_or_404(selectors.visible_to(request.user), pk=pk)


def _created(request: Request, study: Study) -> Response:
    data: dict[str, Any] = StudyDetailOut(_study(request, study.pk), context={"request": request}).data
    return created(data, data["url"])
