"""Safe retries: a request with an ``Idempotency-Key`` is carried out once and answered the same every time.

Rules (IETF draft "The Idempotency-Key HTTP Header Field"): the same key of the same person with the same request
replays the stored answer byte for byte for 24 h; with another request it is refused with 422; while the first is
still in flight with 409. Answers 409, 429 and 5xx are not kept, so that the retry really tries again. An in-flight
mark whose process died is given up after `ABANDONED_AFTER`.
"""

import hashlib
import re
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from rest_framework.request import Request

from controlplane.accounts.models import User
from controlplane.api.models import IdempotentAnswer
from controlplane.api.problems import ApiProblem

HEADER = "Idempotency-Key"
KEPT_FOR = timedelta(hours=24)
ABANDONED_AFTER = timedelta(minutes=10)
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_KEPT_HEADERS = ("Content-Type", "Location", "ETag")


class Replay(Exception):  # noqa: N818  (not an error)
    """Not an error: the answer is known already and is in ``response``."""

    def __init__(self, response: HttpResponseBase) -> None:
        self.response = response
        super().__init__("replayed")


def claim(request: Request, user: User) -> IdempotentAnswer | None:
    """The right to carry out a keyed request, as the row for its answer; None without a key.

    Raises:
        Replay: it was carried out before.
        ApiProblem: it is in flight (409), or the key belongs to another request (422).
    """
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise ApiProblem(400, f"{HEADER}: use 1 to 200 visible ASCII characters.", code="bad_idempotency_key")
    digest = _request_digest(request)
    now = timezone.now()
    rows = IdempotentAnswer.objects.filter(user=user)
    rows.filter(created_at__lt=now - KEPT_FOR).delete()
    rows.filter(key=key, status=0, created_at__lt=now - ABANDONED_AFTER).delete()
    try:
        with transaction.atomic():
            return IdempotentAnswer.objects.create(user=user, key=key, request_digest=digest)
    except IntegrityError:
        known = rows.filter(key=key).first()
    if known is None or known.status == 0:
        raise ApiProblem(
            409, "A request with this key is still being carried out.", code="in_flight", headers={"Retry-After": "1"}
        )
    if known.request_digest != digest:
        raise ApiProblem(422, f"This {HEADER} was used for another request.")
    raise Replay(_stored(known))


def keep(row: IdempotentAnswer, response: HttpResponseBase) -> None:
    """Store the answer to a claimed request, or give the claim up when the answer must not be replayed."""
    status = response.status_code
    if status in (409, 429) or status >= 500 or not isinstance(response, HttpResponse):
        row.delete()
        return
    row.status = status
    row.headers = {name: response[name] for name in _KEPT_HEADERS if name in response}
    row.body = bytes(response.content)
    row.save(update_fields=["status", "headers", "body"])


def _stored(row: IdempotentAnswer) -> HttpResponse:
    response = HttpResponse(bytes(row.body), status=row.status)
    for name, value in row.headers.items():
        response[name] = value
    response["Idempotent-Replayed"] = "true"
    return response


def _request_digest(request: Request) -> str:
    """Verb, path, query and body; of an upload its fields and the bytes of its files, not the random boundary."""
    digest = hashlib.sha256(f"{request.method} {request.get_full_path()}\n".encode())
    if not request.FILES:
        fields = request.POST.lists() if _is_form(request) else []
        digest.update(repr(sorted(fields)).encode() if fields else request.body)
        return digest.hexdigest()
    digest.update(repr(sorted(request.POST.lists())).encode())
    for name, file in sorted(request.FILES.items()):
        digest.update(f"\n{name}:{file.name}\n".encode())
        for chunk in file.chunks():
            digest.update(chunk)
        file.seek(0)
    return digest.hexdigest()


def _is_form(request: Request) -> bool:
    return str(request.content_type).startswith(("multipart/form-data", "application/x-www-form-urlencoded"))
