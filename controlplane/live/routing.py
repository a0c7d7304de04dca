"""WebSocket routes."""

from typing import Any, cast

from channels.routing import URLRouter
from channels.sessions import SessionMiddlewareStack
from django.urls import path

from controlplane.live.consumers import LiveConsumer
from controlplane.live.origin import ExactOrigin

# Channels types its own form of a route, which Django's `path` does not know.
_routes: Any = [path("live/", cast(Any, LiveConsumer.as_asgi()))]

websocket_application = ExactOrigin(cast(Any, SessionMiddlewareStack(URLRouter(_routes))))
