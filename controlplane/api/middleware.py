"""Request ids for every answer, and problem documents instead of HTML for everything under ``/api/``."""

import logging
import re

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

from controlplane.api.problems import CODES, PROBLEM_TYPE, problem_document
from controlplane.ids import new_id

logger = logging.getLogger(__name__)

API_PREFIX = "/api/"
_GIVEN_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")


class RequestIds(MiddlewareMixin):
    """Name every request, taking over a well-formed ``X-Request-ID``, and repeat the name in the answer."""

    def process_request(self, request: HttpRequest) -> None:
        given = request.headers.get("X-Request-ID", "")
        request.request_id = given if _GIVEN_ID.fullmatch(given) else new_id("req")  # type: ignore[attr-defined]

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response["X-Request-ID"] = request_id(request)
        return response


class ApiErrors(MiddlewareMixin):
    """Errors raised outside the API's views (unknown path, refused host, size cap) in the API's error shape."""

    def process_request(self, request: HttpRequest) -> HttpResponseBase | None:
        if not request.path_info.startswith(API_PREFIX):
            return None
        if "\x00" in request.path_info or "%00" in request.META.get("QUERY_STRING", ""):
            return self._problem(request, 404, "")  # nothing has such a name, and PostgreSQL cannot even look for it
        if request.path_info.endswith("/"):
            request.path_info = request.path_info.rstrip("/")  # both spellings of a URL reach the one view
        return None

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        if not request.path_info.startswith(API_PREFIX):
            return None
        if isinstance(exception, RequestDataTooBig):
            return self._problem(request, 413, "The request body is larger than this server accepts.")
        logger.exception("request %s failed", request_id(request), exc_info=exception)
        return self._problem(request, 500, "The server failed; its log knows this request by its id.")

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        api = request.path_info.startswith(API_PREFIX)
        if not api or response.status_code < 400 or "json" in response.get("Content-Type", ""):
            return response
        return self._problem(request, response.status_code, "")

    def _problem(self, request: HttpRequest, status: int, detail: str) -> HttpResponse:
        code, title = CODES.get(status, ("error", "Error"))
        document = problem_document(
            status=status, code=code, detail=detail or title, problems=[], request_id=request_id(request)
        )
        return HttpResponse(document.as_json(), status=status, content_type=PROBLEM_TYPE)


def request_id(request: HttpRequest) -> str:
    """The name of a request."""
    return str(getattr(request, "request_id", ""))
