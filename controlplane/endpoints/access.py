"""How a run reaches its arm's deployment: address, secret and limits, put together where the run is prepared."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from controlplane.endpoints.models import Endpoint
from controlplane.endpoints.sealing import unseal
from scheduler_core.spec.addresses import Reach
from scheduler_core.spec.launch import LaunchFile
from scheduler_core.spec.parse import parse
from scheduler_core.spec.server import Access, Deployment
from scheduler_core.spec.yamltext import load_mapping
from scheduler_core.types.errors import InputError, Problem


def reach() -> Reach:
    """Where requests of this installation may go."""
    return Reach(settings.ENDPOINT_HOSTS, closed())


def access_to(deployment: Deployment) -> Access:
    """How ``deployment`` is reached from this process's machine; it may hold a secret and is never stored.

    Raises:
        InputError: the endpoint was removed, its secret cannot be opened, or this worker has no such template.
    """
    limits: dict[str, Any] = {"allowed": tuple(settings.ENDPOINT_HOSTS), "closed": tuple(closed())}
    if deployment.launch is not None:
        templates = launch_templates().templates
        if deployment.launch not in templates:
            known = ", ".join(templates) or "none"
            message = f"this worker has no launch template {deployment.launch!r}; it has {known}"
            raise InputError([Problem("target.server.launch", message)])
        return Access(launch=templates[deployment.launch])
    if deployment.endpoint is None:
        return Access(url=deployment.url, **limits)
    found = Endpoint.objects.filter(name=deployment.endpoint).first()
    if found is None:
        message = f"there is no endpoint {deployment.endpoint!r} any more"
        raise InputError([Problem("target.server.endpoint", message)])
    return Access(url=found.url, headers=secret_headers(found), verify_tls=found.verify_tls, **limits)


def secret_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers that carry an endpoint's secret; none without one."""
    secret = unseal(endpoint.sealed_secret)
    return {"authorization": f"Bearer {secret}"} if secret else {}


def launch_templates() -> LaunchFile:
    """The launch templates that an administrator keeps on this machine; none without a file."""
    path = Path(settings.LAUNCH_FILE)
    if not path.is_file():
        return LaunchFile()
    try:
        return parse(LaunchFile, load_mapping(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from None


def closed() -> list[tuple[str, int]]:
    """Address and port of every process of this installation: none of them is a model server."""
    found = [("127.0.0.1", settings.WEB_PORT), ("::1", settings.WEB_PORT)]
    for url in (settings.REDIS_URL, _database_url()):
        parts = urlsplit(url)
        if parts.hostname:
            port = parts.port or (6379 if parts.scheme.startswith("redis") else 5432)
            found += [(address, port) for address in _addresses(parts.hostname)]
    return found


def _database_url() -> str:
    database = settings.DATABASES["default"]
    host, port = str(database.get("HOST") or ""), str(database.get("PORT") or "")
    return f"postgres://{host}:{port or 5432}" if host and not host.startswith("/") else ""


def _addresses(host: str) -> Iterator[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return
    yield from dict.fromkeys(str(item[4][0]) for item in found)
