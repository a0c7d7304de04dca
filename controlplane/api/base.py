"""The base of every API view: reading the body within its cap, idempotency, entity tags."""

import hashlib
from typing import Any

from django.conf import settings
from django.http import HttpResponseNotModified
from django.http.response import HttpResponseBase
from rest_framework.permissions import SAFE_METHODS
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer, Serializer
from rest_framework.views import APIView

from controlplane.accounts.models import User
from controlplane.api import idempotency
from controlplane.api.fields import ListFilter
from controlplane.api.models import IdempotentAnswer
from controlplane.api.pagination import Keyset
from controlplane.api.problems import ApiProblem


class ApiView(APIView):
    """One resource or one action on it; signed-in people only unless a view says otherwise."""

    _claim: IdempotentAnswer | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method in SAFE_METHODS:
            return
        _read_capped(request)
        if isinstance(request.user, User):
            self._claim = idempotency.claim(request, request.user)

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self._claim = None
        response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        if isinstance(response, Response):
            response.render()
        if self._claim is not None:
            idempotency.keep(self._claim, response)
        return _not_modified(request, response)

    @property
    def person(self) -> User:
        """Who is asking."""
        assert isinstance(self.request.user, User)  # the SignedIn permission let the request in
        return self.request.user

    def read(self, serializer: type[Serializer[Any]], data: Any = None) -> dict[str, Any]:
        """The request's input (or ``data``) as the serializer's validated values; unknown keys are refused."""
        given = self.request.data if data is None else data
        reader = serializer(data=given)
        reader.is_valid(raise_exception=True)
        return dict(reader.validated_data)


class ListView(ApiView):
    """A list in keyset pages. ``wanted`` are the filters asked for, as ``filter_class`` reads them."""

    pagination_class = Keyset
    filter_class: type[ListFilter] = ListFilter
    wanted: dict[str, Any]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method in SAFE_METHODS:
            self.wanted = self.read(self.filter_class, request.query_params)

    def page(self, queryset: Any, serializer: type[BaseSerializer[Any]]) -> Response:
        """One keyset page of a list."""
        pages = self.pagination_class()
        rows: Any = pages.paginate_queryset(queryset, self.request, view=self)
        return pages.get_paginated_response(serializer(rows, many=True).data)


def require_match(request: Request, data: Any) -> None:
    """Refuse with 412 when an ``If-Match`` header names another version of the object than ``data`` is.

    Tags are weak (they follow the whole answer), so this guards against lost updates, not against byte differences.
    """
    asked = request.headers.get("If-Match", "*")
    if asked != "*" and _tag(JSONRenderer().render(data)) not in [part.strip() for part in asked.split(",")]:
        raise ApiProblem(412, "It was changed since you read it; read it again.")


def created(data: Any, location: str) -> Response:
    """201 with the address of what was made."""
    return Response(data, status=201, headers={"Location": location})


def _read_capped(request: Request) -> None:
    """Read the body now, refusing more than the caps; uploads go to disk and have a cap of their own."""
    length = request.META.get("CONTENT_LENGTH") or "0"
    size = int(length) if length.isdigit() else 0
    upload = str(request.content_type).startswith("multipart/form-data")
    cap = (
        settings.TRACE_UPLOAD_MAX_BYTES + settings.UPLOAD_FORM_BYTES if upload else settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    )
    if size > cap:
        raise ApiProblem(413, f"The request body has {size} bytes; this server accepts {cap}.")
    if not upload:
        _ = request._request.body  # enforces DATA_UPLOAD_MAX_MEMORY_SIZE, also without a Content-Length


def _tag(content: bytes) -> str:
    return f'W/"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def _not_modified(request: Any, response: HttpResponseBase) -> HttpResponseBase:
    """Give successful JSON reads a weak entity tag, and answer 304 to a reader who has that version."""
    if request.method != "GET" or response.status_code != 200 or not isinstance(response, Response):
        return response
    tag = _tag(response.content)
    asked = request.META.get("HTTP_IF_NONE_MATCH", "")
    if tag in [part.strip() for part in asked.split(",")]:
        unchanged = HttpResponseNotModified()
        unchanged["ETag"] = tag
        return unchanged
    response["ETag"] = tag
    response["Cache-Control"] = "private, no-cache"
    return response
