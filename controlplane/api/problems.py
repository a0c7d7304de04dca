"""The one error shape of the API: a problem document after RFC 9457, with a stable code and every reason.

::

    {"type": "about:blank", "title": "Invalid input", "status": 400, "code": "invalid_input",
     "detail": "2 problems in the input", "problems": [{"where": "arms.a.batch.size", "message": "..."}],
     "request_id": "req_..."}

``code`` is for programs, ``detail`` and ``problems`` for people. Codes are never renamed.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import OperationalError
from django.http import Http404
from django.http.response import HttpResponseBase
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import set_rollback

from controlplane.errors import ConflictError, QuotaError
from scheduler_core.types.errors import InputError, Problem

logger = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"

# Status -> (code, title); a more specific code is given where the exception is known.
CODES: dict[int, tuple[str, str]] = {
    400: ("invalid_input", "Invalid input"),
    401: ("not_signed_in", "Not signed in"),
    403: ("forbidden", "Forbidden"),
    404: ("not_found", "Not found"),
    405: ("method_not_allowed", "Method not allowed"),
    406: ("not_acceptable", "Not acceptable"),
    409: ("conflict", "Conflict"),
    412: ("changed_meanwhile", "Changed meanwhile"),
    413: ("too_large", "Too large"),
    415: ("unsupported_media_type", "Unsupported media type"),
    422: ("idempotency_key_reused", "Idempotency key reused"),
    429: ("too_many_requests", "Too many requests"),
    500: ("internal", "Internal error"),
    503: ("busy", "Busy"),
}


_OWN_CODES = ("read_only_token",)  # given by our own permissions


class ApiProblem(exceptions.APIException):
    """A refusal with a status and code of its own."""

    def __init__(self, status: int, detail: str, *, code: str = "", headers: dict[str, str] | None = None) -> None:
        self.status_code = status
        self.problem_code = code or CODES[status][0]
        self.headers = headers or {}
        super().__init__(detail)


@dataclass(frozen=True)
class ProblemDocument:
    """What is sent."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    problems: list[dict[str, str]]
    request_id: str

    def as_json(self) -> bytes:
        """UTF-8 JSON."""
        return json.dumps(asdict(self), ensure_ascii=False).encode()


def problem_document(
    *, status: int, code: str, detail: str, problems: list[Problem], request_id: str
) -> ProblemDocument:
    """The document for a status, code and reasons."""
    title = CODES.get(status, ("", "Error"))[1]
    listed = [{"where": problem.where, "message": problem.message} for problem in problems]
    return ProblemDocument("about:blank", title, status, code, detail, listed, request_id)


@dataclass(frozen=True)
class _Answer:
    """An exception in terms of HTTP."""

    status: int
    detail: str
    code: str = ""
    problems: tuple[Problem, ...] = ()


def exception_handler(exc: Exception, context: dict[str, Any]) -> HttpResponseBase:
    """Every exception of a view as a problem document; what nobody expected is logged and told without detail."""
    request: Request = context["request"]
    ready = getattr(exc, "response", None)
    if isinstance(ready, HttpResponseBase):
        return ready
    answer = _answer(exc)
    request_id = str(getattr(request, "request_id", ""))
    if answer.status >= 500 and answer.status != 503:
        logger.exception("request %s failed", request_id, exc_info=exc)
    set_rollback()
    document = problem_document(
        status=answer.status,
        code=answer.code or CODES.get(answer.status, ("error", ""))[0],
        detail=answer.detail,
        problems=list(answer.problems),
        request_id=request_id,
    )
    return Response(asdict(document), status=answer.status, headers=_headers(exc), content_type=PROBLEM_TYPE)


def _answer(exc: Exception) -> _Answer:
    if isinstance(exc, InputError):
        return _invalid(list(exc.problems))
    if isinstance(exc, exceptions.ValidationError):
        return _invalid(list(_flat(exc.detail)))
    if isinstance(exc, ApiProblem):
        return _Answer(exc.status_code, str(exc.detail), exc.problem_code)
    own = _own_answer(exc)
    if own is not None:
        return own
    if isinstance(exc, exceptions.APIException):
        return _rest_answer(exc)
    return _Answer(500, "The server failed; its log knows this request by its id.")


def _own_answer(exc: Exception) -> _Answer | None:
    """Answers for the exceptions of services and of Django."""
    if isinstance(exc, ConflictError):
        return _Answer(409, str(exc))
    if isinstance(exc, QuotaError):
        return _Answer(429, str(exc), "quota_exceeded")
    if isinstance(exc, PermissionDenied):
        return _Answer(403, str(exc) or "You may not do this.")
    if isinstance(exc, Http404):
        return _Answer(404, "There is no such thing here.")
    if isinstance(exc, RequestDataTooBig):
        return _Answer(413, "The request body is larger than this server accepts.")
    if isinstance(exc, SuspiciousOperation):
        return _Answer(400, "The request is malformed.", "malformed")
    if isinstance(exc, RecursionError):
        return _Answer(400, "The input is nested too deeply.", "malformed")
    if isinstance(exc, OperationalError):
        return _Answer(503, "The database is busy; try again.")
    return None


def _rest_answer(exc: exceptions.APIException) -> _Answer:
    codes = {exceptions.AuthenticationFailed: "bad_credentials", exceptions.ParseError: "malformed"}
    detail = exc.detail if isinstance(exc.detail, str) else str(exc)
    given = getattr(exc.detail, "code", "")
    return _Answer(exc.status_code, str(detail), given if given in _OWN_CODES else codes.get(type(exc), ""))


def _invalid(problems: list[Problem]) -> _Answer:
    detail = str(problems[0]) if len(problems) == 1 else f"{len(problems)} problems in the input"
    return _Answer(400, detail, "invalid_input", tuple(problems))


def _flat(detail: Any, path: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Problems of a serializer's nested error structure, with dotted paths."""
    if isinstance(detail, dict):
        for key, value in detail.items():
            yield from _flat(value, path if key == "non_field_errors" else (*path, str(key)))
    elif isinstance(detail, list):
        for place, value in enumerate(detail):
            nested = isinstance(value, dict | list)
            yield from _flat(value, (*path, str(place)) if nested else path)
    else:
        yield Problem(".".join(path), str(detail))


def _headers(exc: Exception) -> dict[str, str]:
    headers = dict(getattr(exc, "headers", {}) or {})
    if getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = str(exc.auth_header)  # type: ignore[attr-defined]
    wait = getattr(exc, "wait", None)
    if wait is not None:
        headers["Retry-After"] = str(max(1, round(wait)))
    elif isinstance(exc, QuotaError):
        headers["Retry-After"] = "30"
    elif isinstance(exc, OperationalError):
        headers["Retry-After"] = "1"
    return headers
