"""Middleware of all pages: browser's time zone, no caching, and the context of every template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any, cast
from zoneinfo import ZoneInfo, available_timezones

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils import timezone
from django.utils.decorators import sync_and_async_middleware

from gpucoord_site import welcome
from gpucoord_site.documentation.library import chapter_of
from monitor.incidents.pages.listing import alert_count
from scheduler.limits.throttle.pages import badge

COOKIE = "timezone"
PRIVATE = "private, no-store"
GetResponse = Callable[[HttpRequest], Any]


class Middleware:
    """Base class: `before` may answer a request, `after` may change or replace an answer."""

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if self.is_async:
            return self._answer_async(request)
        answer = self.before(request)
        return self.after(request, self.get_response(request) if answer is None else answer)

    async def _answer_async(self, request: HttpRequest) -> HttpResponseBase:
        answer = self.before(request)
        return self.after(request, await self.get_response(request) if answer is None else answer)

    def before(self, request: HttpRequest) -> HttpResponseBase | None:
        """An answer instead of the page. None: go on."""
        return None

    def after(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        return response


@sync_and_async_middleware
def browser_zone(get_response: GetResponse) -> GetResponse:
    """Activate the cookie's zone for one request; without a valid one the server's zone holds."""
    if iscoroutinefunction(get_response):
        async_response = cast("Callable[[HttpRequest], Awaitable[HttpResponseBase]]", get_response)

        async def answer(request: HttpRequest) -> HttpResponseBase:
            with timezone.override(_zone(request)):
                return await async_response(request)

        return answer

    def answer_sync(request: HttpRequest) -> HttpResponseBase:
        with timezone.override(_zone(request)):
            return cast(HttpResponseBase, get_response(request))

    return answer_sync


def _zone(request: HttpRequest) -> ZoneInfo | None:
    name = request.COOKIES.get(COOKIE, "")
    return ZoneInfo(name) if name in _known() else None


@cache
def _known() -> frozenset[str]:
    return frozenset(available_timezones())


class PrivatePages(Middleware):
    """Adds `Cache-Control: private, no-store`: almost every page is for one user."""

    def after(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
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


class Compress(Middleware):
    """Compresses pages, REST answers and static files.

    Logs and other answers that are streamed stay as they are: each piece must arrive at once.
    An answer to HEAD stays, too: the end of an empty stream would be sent as its body, and stand
    before the next answer of the connection.
    Django's random padding hides the lengths from which secrets could be guessed (BREACH).
    """

    def after(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        is_file = request.path.startswith(settings.STATIC_URL) and response.status_code == 200
        is_piecewise = response.streaming and not is_file
        if request.method == "HEAD" or kind not in COMPRESSED or is_piecewise:
            return response
        return _gzip.process_response(request, response)


_gzip = GZipMiddleware(lambda request: cast(HttpResponseBase, None))
