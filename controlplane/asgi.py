"""ASGI entry point: HTTP by Django, WebSockets by Channels."""

import os

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

http_application = get_asgi_application()

# The routes import models, which are ready only now.
from controlplane.live.routing import websocket_application  # noqa: E402

application = ProtocolTypeRouter({"http": http_application, "websocket": websocket_application})
