"""Experiments: check, submit, watch, cancel, clone."""

from io import BytesIO
from typing import Any

from django.http import Http404
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import access
from controlplane.api.base import ApiView, ListView, created, require_match
from controlplane.api.downloads import attachment
from controlplane.api.fields import (
    ExperimentSpecField,
    Input,
    Link,
    ListFilter,
    MultipleChoiceField,
    Nothing,
    ObjectField,
    PolicySpecField,
    VerdictField,
)
from controlplane.api.parsers import BoundedJSONParser, YAMLParser
from controlplane.api.v1.runs import RunOut, run_for
from controlplane.experiments import selectors, services
from controlplane.experiments.exports import EXPERIMENT_EXPORTS, export_text
from controlplane.experiments.forking import fork_run
from controlplane.experiments.models import Experiment
from scheduler_core.spec.experiment import ExperimentSpec

TAGS = ["experiments"]

EXAMPLE = OpenApiExample(
    "static against continuous batching",
    request_only=True,
    value={
        "name": "chunked prefill on chat traffic",
        "workload": {"profile": "azure-2023-conv", "requests": 60, "rate_rps": 4, "lengths_scale": 0.25, "seed": 7},
        "target": {"torch": {"model": "demo-s"}},
        "arms": {
            "baseline": {"policy": "static", "batch": {"size": 8}},
            "budget-512": {"policy": "vllm_v1", "batch": {"token_budget": 512}},
        },
        "repeats": 5,
        "goal": {"primary": "ttft_p95_ms", "better_by": "10%", "guard": {"tpot_p95_ms": "+5%"}},
    },
)


class ExperimentOut(serializers.ModelSerializer[Experiment]):
    """An experiment as lists show it."""

    url = Link("experiment", pk="pk")
    owner = serializers.CharField(source="owner.username")
    plan_digest = serializers.CharField(source="plan_id")
    runs_total = serializers.IntegerField(source="run_count")
    runs_ended = serializers.IntegerField(source="ended_count")
    exit_code = serializers.SerializerMethodField(
        help_text="Of the verdict, once decided: 0 accept, 10 tune, 20 reject, 30 not comparable."
    )

    class Meta:
        model = Experiment
        fields = (
            "id", "url", "name", "owner", "status", "reason", "runs_total", "runs_ended", "exit_code", "digest",
            "plan_digest", "created_at", "decided_at", "archived_at",
        )  # fmt: skip

    def get_exit_code(self, experiment: Experiment) -> int | None:
        decided = experiment.status == Experiment.Status.DECIDED  # else it is of a look that decided nothing
        return experiment.verdict["exit_code"] if decided and experiment.verdict else None


class ExperimentDetailOut(ExperimentOut):
    """An experiment with its spec, its runs in the order they are played, and its verdict."""

    spec = ExperimentSpecField()
    cloned_from = serializers.CharField(source="cloned_from_id", allow_null=True)
    verdict = VerdictField(allow_null=True)
    runs = serializers.SerializerMethodField()

    class Meta(ExperimentOut.Meta):
        fields = (*ExperimentOut.Meta.fields, "spec", "cloned_from", "notes", "verdict", "runs")  # type: ignore[assignment]

    def get_runs(self, experiment: Experiment) -> list[dict[str, Any]]:
        rows = selectors.runs_of(experiment).select_related("owner", "arm_run__arm")
        return [dict(row) for row in RunOut(rows, many=True, context=self.context).data]


class ExperimentFilter(ListFilter):
    """Filters of the experiment list."""

    status = MultipleChoiceField(choices=Experiment.Status.choices, required=False)
    owner = serializers.CharField(required=False, max_length=150)
    name = serializers.CharField(required=False, max_length=64, help_text="Part of the name.")
    archived = serializers.BooleanField(required=False, default=False)


class ExperimentChange(Input):
    """What may change of an experiment."""

    notes = serializers.CharField(required=False, allow_blank=True, max_length=10_000)
    archived = serializers.BooleanField(required=False)


class CloneIn(Input):
    """What differs from the original: top-level keys of the spec that replace its own."""

    changes = ObjectField(required=False, help_text='Such as {"name": "again", "repeats": 10}.')

    def validate_changes(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise serializers.ValidationError("expected an object of spec keys")
        return value


class Experiments(ListView):
    """All experiments; one more."""

    filter_class = ExperimentFilter
    parser_classes = [BoundedJSONParser, YAMLParser]

    @extend_schema(
        operation_id="experiments_list",
        tags=TAGS,
        parameters=[ExperimentFilter],
        responses=ExperimentOut(many=True),
    )
    def get(self, request: Request) -> Response:
        """Experiments, newest first."""
        wanted = self.wanted
        rows = selectors.visible_to(request.user).filter(archived_at__isnull=not wanted["archived"])
        if wanted.get("status"):
            rows = rows.filter(status__in=wanted["status"])
        if "owner" in wanted:
            rows = rows.filter(owner__username=wanted["owner"])
        if "name" in wanted:
            rows = rows.filter(name__icontains=wanted["name"])
        return self.page(rows, ExperimentOut)

    @extend_schema(
        operation_id="experiments_submit",
        tags=TAGS,
        request=ExperimentSpec,
        responses={201: ExperimentDetailOut},
        examples=[EXAMPLE],
    )
    def post(self, request: Request) -> Response:
        """Submit an experiment: freeze its workload and queue its runs."""
        experiment = services.submit_experiment(owner=self.person, data=request.data)
        return _created(request, experiment)


class ExperimentCheck(ApiView):
    """A dry run of submitting."""

    parser_classes = [BoundedJSONParser, YAMLParser]

    @extend_schema(
        operation_id="experiments_check",
        tags=TAGS,
        request=ExperimentSpec,
        responses=OpenApiTypes.OBJECT,
        examples=[EXAMPLE],
    )
    def post(self, request: Request) -> Response:
        """Check an experiment without submitting it: every problem, or what would be run."""
        return Response(services.check_experiment(user=self.person, data=request.data))


class ExperimentDetail(ApiView):
    """One experiment."""

    @extend_schema(operation_id="experiments_show", tags=TAGS, responses=ExperimentDetailOut)
    def get(self, request: Request, pk: str) -> Response:
        """One experiment: spec, runs, verdict."""
        return Response(ExperimentDetailOut(experiment_for(request, pk), context={"request": request}).data)

    @extend_schema(
        operation_id="experiments_change", tags=TAGS, request=ExperimentChange, responses=ExperimentDetailOut
    )
    def patch(self, request: Request, pk: str) -> Response:
        """Change what may change: the notes, and whether lists hide it."""
        experiment = experiment_for(request, pk)
        access.require_change(request.user, experiment)
        require_match(request, ExperimentDetailOut(experiment, context={"request": request}).data)
        change = self.read(ExperimentChange)
        if "notes" in change:
            services.set_notes(experiment=experiment, user=self.person, notes=change["notes"])
        if "archived" in change:
            services.set_archived(experiment=experiment, user=self.person, archived=change["archived"])
        return Response(ExperimentDetailOut(experiment_for(request, pk), context={"request": request}).data)


class ExperimentCancel(ApiView):
    """Cancelling an experiment."""

    @extend_schema(operation_id="experiments_cancel", tags=TAGS, request=Nothing, responses={202: ExperimentDetailOut})
    def post(self, request: Request, pk: str) -> Response:
        """Cancel every run that has not ended; 409 when the experiment has ended."""
        experiment = experiment_for(request, pk)
        self.read(Nothing)
        services.cancel_experiment(experiment=experiment, user=self.person)
        data = ExperimentDetailOut(experiment_for(request, pk), context={"request": request}).data
        return Response(data, status=202)


class ExperimentClone(ApiView):
    """The same experiment again, with changes."""

    @extend_schema(operation_id="experiments_clone", tags=TAGS, request=CloneIn, responses={201: ExperimentDetailOut})
    def post(self, request: Request, pk: str) -> Response:
        """Submit a copy with some keys of the spec replaced; it remembers what it came from."""
        original = experiment_for(request, pk)
        data = {**services.clone_spec(original), **self.read(CloneIn).get("changes", {})}
        experiment = services.submit_experiment(owner=self.person, data=data, cloned_from=original)
        return _created(request, experiment)


class ForkIn(Input):
    """The moment and the policy that takes over there."""

    at_s = serializers.FloatField(min_value=0.000001, max_value=1e9, help_text="The moment, in seconds of the run.")
    policy = PolicySpecField(help_text="From there on; only rules that need no other pool or preset may differ.")


class RunFork(ApiView):
    """A modelled run, changed at a moment, beside itself unchanged."""

    @extend_schema(operation_id="runs_fork", tags=["runs"], request=ForkIn, responses={201: ExperimentDetailOut})
    def post(self, request: Request, pk: str) -> Response:
        """Submit an experiment whose arms share the run's beginning up to a moment; 409 when it cannot be forked."""
        run = run_for(request, pk)
        data = self.read(ForkIn)
        return _created(request, fork_run(owner=self.person, run=run, at_s=data["at_s"], policy=data["policy"]))


class ExperimentExport(ApiView):
    """A verdict for other people and programs."""

    @extend_schema(
        operation_id="experiments_export",
        tags=TAGS,
        parameters=[OpenApiParameter("name", str, "path", enum=list(EXPERIMENT_EXPORTS))],
        responses={(200, "application/octet-stream"): bytes},
    )
    def get(self, request: Request, pk: str, name: str) -> HttpResponseBase:
        """Download a decided experiment as an offline page, pull-request text or JUnit; 409 while it has no verdict."""
        text = export_text(experiment=experiment_for(request, pk), name=name)
        if text is None:
            raise Http404
        data = text.encode()
        return attachment(BytesIO(data), name=f"{pk}-{name}", size=len(data))


def experiment_for(request: Request, pk: str) -> Experiment:
    """One that the person may see, or 404."""
    return get_object_or_404(selectors.visible_to(request.user), pk=pk)


def _created(request: Request, experiment: Experiment) -> Response:
    fresh = experiment_for(request, experiment.pk)
    data = ExperimentDetailOut(fresh, context={"request": request}).data
    return created(data, data["url"])
