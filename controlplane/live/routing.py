"""WebSocket routes."""

from channels.routing import URLRouter
from channels.sessions import SessionMiddlewareStack
from django.urls import path

from controlplane.live.consumers import LiveConsumer
from controlplane.live.origin import ExactOrigin

websocket_application = ExactOrigin(
    SessionMiddlewareStack(URLRouter([path("live/", LiveConsumer.as_asgi())]))  # type: ignore[no-untyped-call]
)
