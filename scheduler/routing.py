"""WebSocket addresses of the jobs."""

from __future__ import annotations

from django.urls import path

from scheduler.consumers import job

# URLRouter takes ASGI applications where Django's stubs know views only.
websocket_urlpatterns = [path("ws/jobs/<int:pk>/", job)]  # type: ignore[arg-type]
