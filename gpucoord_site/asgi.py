"""The ASGI application: HTTP and WebSockets."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucoord_site.settings")

django.setup(set_prefix=False)

# Imported after Django is set up: guards and consumers reach models.
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path, re_path

from gpucoord_site.http.handler import SameOriginOnly, ThreadHandler, Utf8Only, refuse
from monitor.pages.hub import live
from monitor.runtime.rows.extensions import part
from scheduler.jobs.consumers import job

terminal = part("scheduler.terminals.consumers:terminal") or refuse
http = Utf8Only(ThreadHandler())
# URLRouter takes ASGI applications where Django's stubs know views only.
routes = [
    path("ws/live/", live),  # type: ignore[arg-type]
    path("ws/jobs/<int:pk>/", job),  # type: ignore[arg-type]
    path("ws/jobs/<int:pk>/terminal/", terminal),  # type: ignore[arg-type]
    re_path("", refuse),  # type: ignore[arg-type]
]
sockets = SameOriginOnly(AuthMiddlewareStack(URLRouter(routes)))
application = ProtocolTypeRouter({"http": http, "websocket": sockets})
