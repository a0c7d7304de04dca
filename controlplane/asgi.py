"""ASGI entry point: HTTP by Django, WebSockets by Channels."""

import os

from channels.routing import ProtocolTypeRouter
from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

django_application = get_asgi_application()

# The routes import models, which are ready only now.
from controlplane.api.limits import BodyLimit  # noqa: E402
from controlplane.live.routing import websocket_application  # noqa: E402

http_application = BodyLimit(django_application, max_bytes=settings.TRACE_UPLOAD_MAX_BYTES + settings.UPLOAD_FORM_BYTES)
application = ProtocolTypeRouter({"http": http_application, "websocket": websocket_application})
