"""Exact check of a WebSocket's Origin: scheme, host and port must all match."""

from collections.abc import Awaitable, Callable
from typing import Any

from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import validate_host

Application = Callable[[Any, Any, Any], Awaitable[Any]]


class ExactOrigin:
    """Refuse a handshake (HTTP 403) unless its Origin is one of ``HEADWAY_ORIGINS``, or this very host.

    The validator that Channels builds from ``ALLOWED_HOSTS`` accepts any port and scheme of a named host, and with a
    star even a missing Origin. Here, without a configured list, the Origin must equal ``http(s)://`` + the request's
    Host header, and that host must be an allowed one, so that a rebound name is refused too.
    """

    def __init__(self, application: Application) -> None:
        self.application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if is_allowed(scope):
            return await self.application(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)


def is_allowed(scope: dict[str, Any]) -> bool:
    """Whether the handshake described by an ASGI scope may go on."""
    origins = _headers(scope, b"origin")
    if len(origins) != 1:
        return False
    if settings.ORIGINS:
        return origins[0].lower() in {origin.rstrip("/").lower() for origin in settings.ORIGINS}
    hosts = _headers(scope, b"host")
    if len(hosts) != 1 or not validate_host(_name(hosts[0]), settings.ALLOWED_HOSTS):
        return False
    scheme = "https" if scope.get("scheme") == "wss" or settings.HTTPS else "http"
    return origins[0].lower() == f"{scheme}://{hosts[0]}".lower()


def _headers(scope: dict[str, Any], name: bytes) -> list[str]:
    return [value.decode("latin1") for key, value in scope.get("headers", []) if key == name]


def _name(host: str) -> str:
    """Host without its port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()
