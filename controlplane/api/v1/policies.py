"""Policies, their versions, and the presets they start from."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView, ListView, created, require_match
from controlplane.api.fields import ArchiveIn, Input, Link, ObjectField, PolicySpecField
from controlplane.policies import selectors, services
from controlplane.policies.models import Policy, PolicyVersion

TAGS = ["policies"]


class PolicyIn(Input):
    """A named policy."""

    name = serializers.CharField(max_length=64)
    spec = PolicySpecField()


class PolicyVersionIn(Input):
    """The next version of a policy."""

    spec = PolicySpecField()


class PolicyVersionOut(serializers.ModelSerializer[PolicyVersion]):
    """One immutable version: as written, and with every default of its preset filled in."""

    url = Link("policy-version", pk="policy_id", number="number")
    spec = PolicySpecField()
    resolved = PolicySpecField()

    class Meta:
        model = PolicyVersion
        fields = ("id", "url", "number", "spec", "resolved", "digest", "created_at")


class PolicyOut(serializers.ModelSerializer[Policy]):
    """A policy with its versions, newest first."""

    url = Link("policy", pk="pk")
    owner = serializers.CharField(source="owner.username")
    versions = PolicyVersionOut(many=True)

    class Meta:
        model = Policy
        fields = ("id", "url", "name", "owner", "versions", "created_at", "archived_at")


class Policies(ListView):
    """All policies; one more."""

    @extend_schema(operation_id="policies_list", tags=TAGS, responses=PolicyOut(many=True))
    def get(self, request: Request) -> Response:
        """Policies, newest first."""
        return self.page(selectors.visible_to(request.user), PolicyOut)

    @extend_schema(operation_id="policies_create", tags=TAGS, request=PolicyIn, responses={201: PolicyOut})
    def post(self, request: Request) -> Response:
        """Create a policy with its first version."""
        values = self.read(PolicyIn)
        version = services.create_policy(owner=self.person, name=values["name"], spec=values["spec"])
        data = _policy(request, version.policy_id)
        return created(data, data["url"])


class PolicyPresets(ApiView):
    """The presets that a policy can start from."""

    @extend_schema(
        operation_id="policies_presets", tags=TAGS, responses={200: serializers.ListSerializer(child=ObjectField())}
    )
    def get(self, request: Request) -> Response:
        """Every preset: its name, what it does and its parameters with defaults."""
        return Response(selectors.presets())


class PolicyDetail(ApiView):
    """One policy."""

    @extend_schema(operation_id="policies_show", tags=TAGS, responses=PolicyOut)
    def get(self, request: Request, pk: str) -> Response:
        """One policy with its versions."""
        return Response(_policy(request, pk))

    @extend_schema(operation_id="policies_archive", tags=TAGS, request=ArchiveIn, responses=PolicyOut)
    def patch(self, request: Request, pk: str) -> Response:
        """Hide from lists and pickers, or bring back; what used it keeps it."""
        policy = get_object_or_404(selectors.visible_to(request.user), pk=pk)
        require_match(request, _policy(request, pk))
        services.set_archived(policy=policy, user=self.person, archived=self.read(ArchiveIn)["archived"])
        return Response(_policy(request, pk))


class PolicyVersions(ApiView):
    """The next version of a policy."""

    @extend_schema(
        operation_id="policies_add_version", tags=TAGS, request=PolicyVersionIn, responses={201: PolicyVersionOut}
    )
    def post(self, request: Request, pk: str) -> Response:
        """Add a version; the newest one itself comes back when the spec is equal to it."""
        policy = get_object_or_404(selectors.visible_to(request.user), pk=pk)
        values = self.read(PolicyVersionIn)
        version = services.add_version(policy=policy, user=self.person, spec=values["spec"])
        data = PolicyVersionOut(version, context={"request": request}).data
        return created(data, data["url"])


class PolicyVersionDetail(ApiView):
    """One version."""

    @extend_schema(operation_id="policies_show_version", tags=TAGS, responses=PolicyVersionOut)
    def get(self, request: Request, pk: str, number: int) -> Response:
        """One version of a policy."""
        versions = selectors.versions_visible_to(request.user)
        version = get_object_or_404(versions, policy_id=pk, number=number)
        return Response(PolicyVersionOut(version, context={"request": request}).data)


def _policy(request: Request, pk: str) -> dict[str, Any]:
    policy = get_object_or_404(selectors.visible_to(request.user), pk=pk)
    return dict(PolicyOut(policy, context={"request": request}).data)
