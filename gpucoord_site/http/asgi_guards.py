"""ASGI guards: allowed origins of WebSockets, unknown addresses, and text in UTF-8 only.

Django decodes addresses and forms with any codec of Python that a client names. Some codecs fail
in Django's constructor of requests, others produce characters that no database stores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, QueryDict
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

from gpucoord_site.http import errors
from gpucoord_site.http import errors as problems
from gpucoord_site.http.errors import PREFIX, refusal
from monitor.facts.input_rules import CHARACTER_SENTENCE, is_storable
from monitor.pages.hub import Receive, Scope, Send

Application = Callable[[Scope, Receive, Send], Awaitable[None]]
HttpApplication = Callable[[Any, Any, Any], Awaitable[Any]]
PORTS = {"http": 80, "https": 443}


class SameOriginOnly:
    """Refuses a WebSocket whose Origin differs from the request in scheme, host or port.

    Cookies ignore ports, so a page on another port of the same host carries the session along.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_same_origin(scope):
            await self._application(scope, receive, send)
        else:
            await refuse(scope, receive, send)


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Close before accepting: the browser sees the HTTP status 403."""
    await receive()
    await send({"type": "websocket.close"})


def is_same_origin(scope: Scope) -> bool:
    """Compare Origin with the request, as Django's CSRF check does for forms."""
    request = _request(scope)
    try:
        own = _origin(f"{request.scheme}://{request.get_host()}")
        return own is not None and _origin(request.headers.get("Origin", "")) == own
    except DisallowedHost:
        return False


def _request(scope: Scope) -> ASGIRequest:
    """The handshake as an HTTP request, for Django's rules on hosts and trusted proxies."""
    schemes = {"wss": "https", "https": "https"}
    http: dict[str, Any] = {
        **scope,
        "type": "http",
        "method": "GET",
        "scheme": schemes.get(scope.get("scheme", ""), "http"),
    }
    return ASGIRequest(http, BytesIO())


def _origin(address: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(address)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    if parts.scheme not in PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port


CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s;\"']*)", re.I)
ACCEPTED = {"utf-8", "utf8", "us-ascii", "ascii"}
SENTENCE = "Send text in UTF-8, or leave charset out of the Content-Type."


class Utf8Only:
    """Answers 415 instead of the application."""

    def __init__(self, application: HttpApplication) -> None:
        self._application = application

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if all(map(_is_utf_8, scope.get("headers", ()))):
            await self._application(scope, receive, send)
            return
        headers = [
            (b"content-type", errors.CONTENT_TYPE.encode()),
            (b"connection", b"close"),
        ]
        body = json.dumps(errors.body(415, SENTENCE)).encode()
        await send({"type": "http.response.start", "status": 415, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _is_utf_8(header: tuple[bytes, bytes]) -> bool:
    name, value = header
    if name.lower() != b"content-type":
        return True
    return all(charset.lower() in ACCEPTED for charset in CHARSET.findall(value.decode("latin-1")))


# Middleware: texts that no database stores are refused in addresses and forms.
#
# Request bodies in JSON are checked by `monitor.api.RequestBody`.


IN_ADDRESS = "The address has a character that can't be used."
IN_FORM = "A field of the form has a character that can't be used."
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class AddressGuard(MiddlewareMixin):
    """Refuses NUL in an address (422)."""

    def process_request(self, request: HttpRequest) -> HttpResponseBase | None:
        if "\0" in request.path:
            return _refusal(request, 422, IN_ADDRESS, [])
        if "%00" not in request.META.get("QUERY_STRING", ""):
            return None
        if fields := _unstorable(request.GET):
            return _refusal(request, 422, IN_ADDRESS, fields)
        return None


class FormGuard(MiddlewareMixin):
    """Refuses NUL and half surrogate pairs in fields of a form, after the login was checked."""

    def process_view(self, request: HttpRequest, *_view: object) -> Any:
        """None: nothing is wrong."""
        if request.method != "POST" or request.content_type not in FORMS:
            return None
        if request.path.startswith(PREFIX) or not _unstorable(request.POST):
            return None
        return refusal(request, 422, IN_FORM)


def _refusal(
    request: HttpRequest, status: int, sentence: str, fields: list[str]
) -> HttpResponseBase:
    if not request.path.startswith(PREFIX):
        return refusal(request, status, sentence)
    errors = [{"field": each, "message": CHARACTER_SENTENCE} for each in fields]
    return problems.problem_response(status, sentence, errors)


def _unstorable(query: QueryDict) -> list[str]:
    """Names of the fields whose name or values can't be stored."""
    return [
        name
        for name, values in query.lists()
        if not all(map(is_storable, (name, *map(str, values))))
    ]
