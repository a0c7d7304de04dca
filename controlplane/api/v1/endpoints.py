"""Registered model servers: create, check, try; a secret goes in and never comes out."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView, ListView, created
from controlplane.api.fields import Input, Link, ObjectField
from controlplane.endpoints import selectors, services
from controlplane.endpoints.models import Endpoint

TAGS = ["endpoints"]


class EndpointIn(Input):
    """A model server."""

    name = serializers.CharField(max_length=64)
    url = serializers.CharField(max_length=500, help_text="Its address, without /v1.")
    secret = serializers.CharField(
        max_length=4096, required=False, allow_blank=True, write_only=True, help_text="Sent as a bearer token."
    )
    verify_tls = serializers.BooleanField(required=False, default=True)


class EndpointChange(Input):
    """What is to change; a new address drops the old secret unless one comes with it."""

    url = serializers.CharField(max_length=500, required=False)
    secret = serializers.CharField(max_length=4096, required=False, allow_blank=True, write_only=True)
    verify_tls = serializers.BooleanField(required=False)


class EndpointOut(serializers.ModelSerializer[Endpoint]):
    """A model server and how it last answered; whether it has a secret, never which."""

    link = Link("endpoint", pk="pk")
    owner = serializers.CharField(source="owner.username")
    has_secret = serializers.SerializerMethodField()
    health = ObjectField()

    class Meta:
        model = Endpoint
        fields = (
            "id", "link", "name", "url", "owner", "has_secret", "verify_tls", "health", "checked_at", "created_at",
        )  # fmt: skip

    def get_has_secret(self, endpoint: Endpoint) -> bool:
        return bool(endpoint.sealed_secret)


class TryIn(Input):
    """Which model to ask."""

    model = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")


class RawExchangeOut(serializers.Serializer[Any]):
    """One request and its answer as they went over the wire."""

    request = serializers.CharField()
    answer = serializers.CharField()
    first_byte_ms = serializers.FloatField(allow_null=True)
    problem = serializers.CharField()


class Endpoints(ListView):
    """All endpoints; one more."""

    @extend_schema(operation_id="endpoints_list", tags=TAGS, responses=EndpointOut(many=True))
    def get(self, request: Request) -> Response:
        """Endpoints, newest first."""
        return self.page(selectors.visible_to(request.user), EndpointOut)

    @extend_schema(operation_id="endpoints_create", tags=TAGS, request=EndpointIn, responses={201: EndpointOut})
    def post(self, request: Request) -> Response:
        """Register a model server."""
        endpoint = services.register(owner=self.person, **self.read(EndpointIn))
        data = _endpoint(request, endpoint.pk)
        return created(data, data["link"])


class EndpointDetail(ApiView):
    """One endpoint."""

    @extend_schema(operation_id="endpoints_show", tags=TAGS, responses=EndpointOut)
    def get(self, request: Request, pk: str) -> Response:
        """One endpoint."""
        return Response(_endpoint(request, pk))

    @extend_schema(operation_id="endpoints_change", tags=TAGS, request=EndpointChange, responses=EndpointOut)
    def patch(self, request: Request, pk: str) -> Response:
        """Change address, secret or TLS rule."""
        services.change(endpoint=_found(request, pk), user=self.person, **self.read(EndpointChange))
        return Response(_endpoint(request, pk))

    @extend_schema(operation_id="endpoints_delete", tags=TAGS, responses={204: None})
    def delete(self, request: Request, pk: str) -> Response:
        """Remove it and its secret."""
        services.remove(endpoint=_found(request, pk), user=self.person)
        return Response(status=204)


class EndpointCheck(ApiView):
    """Whether an endpoint answers."""

    @extend_schema(operation_id="endpoints_check", tags=TAGS, request=None, responses=EndpointOut)
    def post(self, request: Request, pk: str) -> Response:
        """Ask the server for its models, and keep how it answered."""
        services.check(endpoint=_found(request, pk), user=self.person)
        return Response(_endpoint(request, pk))


class EndpointTry(ApiView):
    """A short answer from an endpoint, raw."""

    @extend_schema(operation_id="endpoints_try", tags=TAGS, request=TryIn, responses=RawExchangeOut)
    def post(self, request: Request, pk: str) -> Response:
        """Have the server stream a short answer, and show the raw exchange; the secret is masked."""
        found = services.try_out(endpoint=_found(request, pk), user=self.person, model=self.read(TryIn)["model"])
        return Response(RawExchangeOut(found).data)


def _found(request: Request, pk: str) -> Endpoint:
    return get_object_or_404(selectors.visible_to(request.user), pk=pk)


def _endpoint(request: Request, pk: str) -> dict[str, Any]:
    return dict(EndpointOut(_found(request, pk), context={"request": request}).data)
