"""Single requests of a run: the slowest, and where the time of one went."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView
from controlplane.api.fields import ChoiceField, Input
from controlplane.api.v1.runs import TAGS, run_for
from controlplane.evidence import paths
from scheduler_core.evidence.path.report import PathReport
from scheduler_core.evidence.path.slowest import MEASURES


class SlowestFilter(Input):
    """By which figure requests are slow."""

    by = ChoiceField(list(MEASURES), default=MEASURES[0], help_text="The figure by which requests are ranked.")


class SlowRequest(serializers.Serializer[Any]):
    """A request with its figures; null where it has none."""

    request = serializers.IntegerField(help_text="Number of the request in the arrival plan.")
    tier = serializers.CharField()
    prompt_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    preemptions = serializers.IntegerField()
    e2e_ms = serializers.FloatField(allow_null=True)
    ttft_ms = serializers.FloatField(allow_null=True)
    longest_gap_ms = serializers.FloatField(allow_null=True)
    queue_wait_ms = serializers.FloatField(allow_null=True)
    longest_gap_cause = serializers.CharField(allow_null=True)


class RunRequests(ApiView):
    """The slowest requests of a run."""

    @extend_schema(
        operation_id="runs_requests", tags=TAGS, parameters=[SlowestFilter], responses=SlowRequest(many=True)
    )
    def get(self, request: Request, pk: str) -> Response:
        """The 20 requests with the largest figure, largest first; 409 while the run has no table of requests."""
        by = self.read(SlowestFilter, request.query_params)["by"]
        return Response(paths.slowest_requests(run=run_for(request, pk), by=by))


class RunPath(ApiView):
    """Where the time of one request went."""

    @extend_schema(operation_id="runs_request_path", tags=TAGS, responses=PathReport)
    def get(self, request: Request, pk: str, number: int) -> Response:
        """The critical path of a request: exposed and hidden time by kind, and what removing each would save."""
        return Response(paths.path_of(run=run_for(request, pk), request=number).canonical())
