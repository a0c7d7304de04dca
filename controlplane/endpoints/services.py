"""Writes of endpoints, and the requests that a person has made to one."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError
from django.utils import timezone

from controlplane.access import Person, require_change, require_person
from controlplane.accounts.models import User
from controlplane.endpoints.access import reach, secret_headers
from controlplane.endpoints.models import Endpoint
from controlplane.endpoints.outbound import NoAnswerError, Outbound, Received
from controlplane.endpoints.sealing import seal
from controlplane.specs import parse_name
from scheduler_core.spec.addresses import check_http_url
from scheduler_core.spec.server import Deployment
from scheduler_core.types.errors import InputError, Problem

LONGEST_SECRET = 4096
SHOWN_BYTES = 16 * 1024
PROMPT = "Say hello."


def register(*, owner: User, name: str, url: str, secret: str = "", verify_tls: bool = True) -> Endpoint:
    """Register a model server. `InputError` for a name or address that cannot be one, or a name that is taken."""
    require_person(owner)
    name, url = parse_name(name), _url(url)
    secret = _secret(secret)
    try:
        return Endpoint.objects.create(
            owner=owner, name=name, url=url, sealed_secret=seal(secret), verify_tls=verify_tls
        )
    except IntegrityError:
        raise InputError([Problem("name", f"there is an endpoint {name!r} already")]) from None


def change(
    *, endpoint: Endpoint, user: Person, url: str | None = None, secret: str | None = None,
    verify_tls: bool | None = None,
) -> Endpoint:  # fmt: skip
    """Change address, secret or TLS rule. A new address without its secret drops the old one, so that none leaks."""
    require_change(user, endpoint)
    if url is not None and _url(url) != endpoint.url:
        endpoint.url, endpoint.health, endpoint.checked_at = _url(url), {}, None
        endpoint.sealed_secret = ""
    if secret is not None:
        endpoint.sealed_secret = seal(_secret(secret))
    if verify_tls is not None:
        endpoint.verify_tls = verify_tls
    endpoint.save()
    return endpoint


def remove(*, endpoint: Endpoint, user: Person) -> None:
    """Remove an endpoint and its secret. Runs made with it keep their evidence; waiting ones fail and say why."""
    require_change(user, endpoint)
    endpoint.delete()


def check(*, endpoint: Endpoint, user: Person) -> Endpoint:
    """Ask the server for its models, and keep how it answered."""
    require_change(user, endpoint)
    endpoint.health = _health(endpoint)
    endpoint.checked_at = timezone.now()
    endpoint.save(update_fields=["health", "checked_at"])
    return endpoint


@dataclass(frozen=True)
class RawExchange:
    """One request and its answer as they went over the wire, the secret masked; ``problem`` when there was none."""

    request: str
    answer: str
    first_byte_ms: float | None
    problem: str = ""


def try_out(*, endpoint: Endpoint, user: Person, model: str = "") -> RawExchange:
    """Have the server stream a short answer, and show the raw exchange."""
    require_change(user, endpoint)
    model = model or next(iter(endpoint.health.get("models") or []), "")
    body = {
        "model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    lines = [f"POST {endpoint.url}/v1/completions", "content-type: application/json"]
    lines += ["authorization: Bearer ********"] if endpoint.sealed_secret else []
    request = "\n".join([*lines, "", json.dumps(body, indent=1)])
    try:
        received = _outbound(endpoint).post("/v1/completions", body)
    except NoAnswerError as error:
        return RawExchange(request, "", None, str(error))
    return RawExchange(request, _shown(received), received.first_byte_ms)


def require_endpoints(deployments: Iterable[tuple[str, Deployment]]) -> None:
    """`InputError` naming each deployment (by its place in the spec) whose endpoint is not registered."""
    wanted = [(where, item.endpoint) for where, item in deployments if item.endpoint is not None]
    known = set(Endpoint.objects.filter(name__in=[name for _, name in wanted]).values_list("name", flat=True))
    missing = [Problem(where, f"there is no endpoint {name!r}") for where, name in wanted if name not in known]
    if missing:
        raise InputError(missing)


def _health(endpoint: Endpoint) -> dict[str, Any]:
    try:
        received = _outbound(endpoint).get("/v1/models")
    except NoAnswerError as error:
        return {"ok": False, "sentence": str(error), "models": []}
    if received.status != 200:
        return {"ok": False, "sentence": f"answered with status {received.status}", "models": []}
    data = received.json()
    listed = data.get("data") if isinstance(data, dict) else None
    models = [str(item.get("id"))[:200] for item in listed or [] if isinstance(item, dict)][:50]
    if not models:
        return {"ok": False, "sentence": "answered, but lists no model at /v1/models", "models": []}
    return {"ok": True, "sentence": f"answered in {received.first_byte_ms:.0f} ms", "models": models}


def _outbound(endpoint: Endpoint) -> Outbound:
    return Outbound(endpoint.url, reach(), secret_headers(endpoint), endpoint.verify_tls)


def _shown(received: Received) -> str:
    head = "\n".join(f"{name}: {value}" for name, value in received.headers.items())
    body = received.body[:SHOWN_BYTES].decode(errors="replace")
    more = "\n... (cut)" if received.cut or len(received.body) > SHOWN_BYTES else ""
    return f"{received.status}\n{head}\n\n{body}{more}"


def _url(value: str) -> str:
    try:
        return check_http_url(value.strip())
    except ValueError as error:
        raise InputError([Problem("url", str(error))]) from None


def _secret(value: str) -> str:
    value = value.strip()
    if len(value) > LONGEST_SECRET or not value.isascii() or not value.isprintable():
        raise InputError([Problem("secret", f"is no secret; up to {LONGEST_SECRET} printable characters")])
    return value
