"""Workloads and their versions."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView, ListView, created, require_match
from controlplane.api.fields import ArchiveIn, Input, Link, ObjectField, WorkloadSpecField
from controlplane.workloads import selectors, services
from controlplane.workloads.models import ArrivalPlan, Workload, WorkloadVersion

TAGS = ["workloads"]


class WorkloadIn(Input):
    """A named workload."""

    name = serializers.CharField(max_length=64)
    spec = WorkloadSpecField()


class WorkloadVersionIn(Input):
    """The next version of a workload."""

    spec = WorkloadSpecField()


class PlanOut(serializers.ModelSerializer[ArrivalPlan]):
    """A frozen workload in figures."""

    preview = ObjectField()

    class Meta:
        model = ArrivalPlan
        fields = ("digest", "requests", "prompt_tokens", "output_tokens", "span_s", "preview")


class WorkloadVersionOut(serializers.ModelSerializer[WorkloadVersion]):
    """One immutable version."""

    url = Link("workload-version", pk="workload_id", number="number")
    spec = WorkloadSpecField()
    plan_digest = serializers.CharField(source="plan_id")
    dataset = serializers.CharField(source="dataset_id", allow_null=True)

    class Meta:
        model = WorkloadVersion
        fields = ("id", "url", "number", "spec", "digest", "plan_digest", "dataset", "created_at")


class WorkloadOut(serializers.ModelSerializer[Workload]):
    """A workload with its versions, newest first."""

    url = Link("workload", pk="pk")
    owner = serializers.CharField(source="owner.username")
    versions = WorkloadVersionOut(many=True)

    class Meta:
        model = Workload
        fields = ("id", "url", "name", "owner", "versions", "created_at", "archived_at")


class Workloads(ListView):
    """All workloads; one more."""

    @extend_schema(operation_id="workloads_list", tags=TAGS, responses=WorkloadOut(many=True))
    def get(self, request: Request) -> Response:
        """Workloads, newest first."""
        return self.page(selectors.visible_to(request.user), WorkloadOut)

    @extend_schema(operation_id="workloads_create", tags=TAGS, request=WorkloadIn, responses={201: WorkloadOut})
    def post(self, request: Request) -> Response:
        """Create a workload with its first version, frozen at once."""
        values = self.read(WorkloadIn)
        version = services.create_workload(owner=self.person, name=values["name"], spec=values["spec"])
        data = _workload(request, version.workload_id)
        return created(data, data["url"])


class WorkloadPreview(ApiView):
    """A workload spec frozen for a look, with nothing kept."""

    @extend_schema(
        operation_id="workloads_preview", tags=TAGS, request=WorkloadVersionIn, responses=OpenApiTypes.OBJECT
    )
    def post(self, request: Request) -> Response:
        """Preview a workload: arrivals, lengths, digest; every problem of the spec."""
        values = self.read(WorkloadVersionIn)
        return Response(services.preview(user=self.person, spec=values["spec"]))


class WorkloadDetail(ApiView):
    """One workload."""

    @extend_schema(operation_id="workloads_show", tags=TAGS, responses=WorkloadOut)
    def get(self, request: Request, pk: str) -> Response:
        """One workload with its versions."""
        return Response(_workload(request, pk))

    @extend_schema(operation_id="workloads_archive", tags=TAGS, request=ArchiveIn, responses=WorkloadOut)
    def patch(self, request: Request, pk: str) -> Response:
        """Hide from lists and pickers, or bring back; what used it keeps it."""
        workload = get_object_or_404(selectors.visible_to(request.user), pk=pk)
        require_match(request, _workload(request, pk))
        services.set_archived(workload=workload, user=self.person, archived=self.read(ArchiveIn)["archived"])
        return Response(_workload(request, pk))


class WorkloadVersions(ApiView):
    """The next version of a workload."""

    @extend_schema(
        operation_id="workloads_add_version", tags=TAGS, request=WorkloadVersionIn, responses={201: WorkloadVersionOut}
    )
    def post(self, request: Request, pk: str) -> Response:
        """Add a version; the newest one itself comes back when the spec is equal to it."""
        workload = get_object_or_404(selectors.visible_to(request.user), pk=pk)
        values = self.read(WorkloadVersionIn)
        version = services.add_version(workload=workload, user=self.person, spec=values["spec"])
        data = WorkloadVersionOut(version, context={"request": request}).data
        return created(data, data["url"])


class WorkloadVersionDetail(ApiView):
    """One version."""

    @extend_schema(operation_id="workloads_show_version", tags=TAGS, responses=WorkloadVersionOut)
    def get(self, request: Request, pk: str, number: int) -> Response:
        """One version of a workload."""
        versions = selectors.versions_visible_to(request.user)
        version = get_object_or_404(versions, workload_id=pk, number=number)
        return Response(WorkloadVersionOut(version, context={"request": request}).data)


class WorkloadVersionPlan(ApiView):
    """The arrival plan a version freezes into."""

    @extend_schema(operation_id="workloads_show_plan", tags=TAGS, responses=PlanOut)
    def get(self, request: Request, pk: str, number: int) -> Response:
        """Figures and preview of a version's arrival plan."""
        versions = selectors.versions_visible_to(request.user)
        version = get_object_or_404(versions, workload_id=pk, number=number)
        return Response(PlanOut(version.plan, context={"request": request}).data)


def _workload(request: Request, pk: str) -> dict[str, Any]:
    workload = get_object_or_404(selectors.visible_to(request.user), pk=pk)
    return dict(WorkloadOut(workload, context={"request": request}).data)
