"""HTTP and WebSocket doors for an ASGI server."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucoord_site.settings")

http = get_asgi_application()

# Imported after Django is set up: consumers reach models.
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator

from monitor.routing import websocket_urlpatterns as monitor_sockets
from scheduler.routing import websocket_urlpatterns as scheduler_sockets

sockets = URLRouter([*monitor_sockets, *scheduler_sockets])
application = ProtocolTypeRouter(
    {"http": http, "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(sockets))}
)
