"""WebSocket addresses of the monitor."""

from __future__ import annotations

from django.urls import path

from monitor.consumers import live

# URLRouter takes ASGI applications where Django's stubs know views only.
websocket_urlpatterns = [path("ws/live/", live)]  # type: ignore[arg-type]
