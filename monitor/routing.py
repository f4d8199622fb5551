"""WebSocket addresses of the monitor."""

from __future__ import annotations

from django.urls import path

from monitor.consumers import live

websocket_urlpatterns = [path("ws/live/", live)]
