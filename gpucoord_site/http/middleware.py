"""Middleware of all pages: browser's time zone, no caching, and the context of every template."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from gpucoord_site import welcome
from gpucoord_site.documentation.library import chapter_of
from monitor.incidents.pages import alert_count
from scheduler.limits.throttle.pages import badge

COOKIE = "timezone"
PRIVATE = "private, no-store"
GetResponse = Callable[[HttpRequest], HttpResponseBase]


def browser_zone(get_response: GetResponse) -> GetResponse:
    """Activate the cookie's zone for one request; without a valid one the server's zone holds."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        with timezone.override(_zone(request)):
            return get_response(request)

    return answer


def _zone(request: HttpRequest) -> ZoneInfo | None:
    name = request.COOKIES.get(COOKIE, "")
    return ZoneInfo(name) if name in _known() else None


@cache
def _known() -> frozenset[str]:
    return frozenset(available_timezones())


class PrivatePages(MiddlewareMixin):
    """Adds `Cache-Control: private, no-store`: almost every page is for one user."""

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        if "no-store" not in response.headers.get("Cache-Control", ""):
            response.headers["Cache-Control"] = PRIVATE
        return response


def site(request: HttpRequest) -> dict[str, object]:
    theme = request.COOKIES.get("theme", "")
    return {
        "theme": theme if theme in ("light", "dark") else "auto",
        "simulated": settings.CONFIG.probe == "simulated",
        "node": settings.CONFIG.node,
        "now": timezone.now(),
        # Asked for by the head of pages alone, so other answers cost nothing.
        "mode_badge": partial(badge, settings.CONFIG.node),
        "alert_count": partial(alert_count, timezone.now()),
        "setup_progress": partial(welcome.progress, request),
        "chapter": partial(chapter_of, request),
        "is_kiosk": "kiosk" in request.GET,
    }


# Compressed answers for clients that accept them.

COMPRESSED = ("text/html", "text/css", "text/javascript", "application/json", "image/svg+xml")


class Compress(GZipMiddleware):
    """Compresses pages, REST answers and static files.

    Logs and other answers that are streamed stay as they are: each piece must arrive at once.
    An answer to HEAD stays, too: the end of an empty stream would be sent as its body, and stand
    before the next answer of the connection.
    Django's random padding hides the lengths from which secrets could be guessed (BREACH).
    """

    def process_response(self, request: HttpRequest, response: Any) -> Any:
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        is_file = request.path.startswith(settings.STATIC_URL) and response.status_code == 200
        is_piecewise = response.streaming and not is_file
        if request.method == "HEAD" or kind not in COMPRESSED or is_piecewise:
            return response
        return super().process_response(request, response)
