"""Django behind ASGI: a thread answers each request in one piece.

Django's own handler changes between the event loop and a thread before and after most middlewares,
about 20 times for each request, in a new thread that opens a new database connection.
Requests of a client wait for each other, so that no client keeps all threads busy.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from io import BytesIO
from typing import IO, Any, cast
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import DisallowedHost, RequestAborted
from django.core.handlers.asgi import ASGIHandler, ASGIRequest, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.core.signals import request_started
from django.db import connections
from django.http import FileResponse, HttpRequest, QueryDict
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix
from django.utils.deprecation import MiddlewareMixin
from msgspec import Struct

from gpucoord_site.http import errors
from gpucoord_site.http import errors as problems
from gpucoord_site.http.errors import PREFIX, refusal
from monitor.facts.input_rules import CHARACTER_SENTENCE, is_storable
from monitor.pages.hub import Receive, Scope, Send

Client = tuple[object, ...]


class Place(Struct):
    """of: how many requests run or wait."""

    turns: asyncio.Semaphore
    of: int = 0


class Turns:
    """At most `most` requests of a client run at a time. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: dict[Client, Place] = {}

    async def take(self, client: Client) -> None:
        """Wait for the turn, which `give_back` ends."""
        place = self._places.setdefault(client, Place(asyncio.Semaphore(self._most)))
        place.of += 1
        try:
            await place.turns.acquire()
        except asyncio.CancelledError:
            self._leave(client, place)
            raise

    def give_back(self, client: Client) -> None:
        place = self._places[client]
        place.turns.release()
        self._leave(client, place)

    def _leave(self, client: Client, place: Place) -> None:
        place.of -= 1
        if place.of == 0:
            del self._places[client]


def client_of(scope: Mapping[str, Any]) -> Client:
    """The client of a request: its token, its session, or else its address.

    Nothing of it is checked here. Requests with neither are counted for each path, so that those
    who log in do not keep others from looking whether the service is well.
    """
    for name, value in scope.get("headers", ()):
        if name == b"authorization":
            return (value,)
        if name == b"cookie" and (session := _session().search(value)):
            return (session[1],)
    return (*(scope.get("client") or ("",))[:1], scope.get("path"))


@cache
def _session() -> re.Pattern[bytes]:
    name = re.escape(settings.SESSION_COOKIE_NAME.encode())
    return re.compile(rb"(?:^|;\s*)" + name + rb"=([^;]+)")


# Requests that are answered at a time, and those of them that are of one client. More would take
# more memory and end no sooner. Some wait for another service, and others must not wait for them.
MOST_AT_ONCE, MOST_OF_A_CLIENT = 32, 8
# Threads that keep their connections, and answer as long as one of them is free. PostgreSQL has few
# connections, and the other hosts need some, too.
REGULAR = 4


class ThreadHandler(ASGIHandler):
    """The middlewares and the view of a request run in one thread."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._regular = ThreadPoolExecutor(REGULAR, "request")
        self._further = ThreadPoolExecutor(MOST_AT_ONCE - REGULAR, "further request")
        self._free = REGULAR
        self._turns = Turns(MOST_OF_A_CLIENT)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        response = await self._response(scope, body)
        if not response.streaming:
            await self.send_response(response, send)
            return
        try:
            if not response.is_async:
                response.streaming_content = self._read(response.streaming_content)
            await self.send_response(response, send)
        finally:
            await self._in_a_thread(response.close)

    async def _response(self, scope: Any, body: IO[bytes]) -> Any:
        """When the client goes away, a request that waits is dropped; a view that runs goes on."""
        client = client_of(scope)
        try:
            await self._turns.take(client)
        except asyncio.CancelledError:
            body.close()
            raise
        answering = self._begin(scope, body, client)
        try:
            return await asyncio.wrap_future(answering)
        except asyncio.CancelledError:
            answering.add_done_callback(partial(_let_go, body))
            raise

    def _begin(self, scope: Any, body: IO[bytes], client: Client) -> Future[Any]:
        loop, is_regular = asyncio.get_running_loop(), self._free > 0
        self._free -= is_regular

        def end() -> None:
            self._free += is_regular
            self._turns.give_back(client)

        def ends(_: object) -> None:
            # The loop is closed when the process ends.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(end)

        threads = self._regular if is_regular else self._further
        answering = threads.submit(copy_context().run, self._answer, scope, body, is_regular)
        answering.add_done_callback(ends)
        return answering

    def _in_a_thread(self, action: Any, *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._further, action, *args)

    async def _read(self, parts: Iterable[bytes]) -> AsyncIterator[bytes]:
        """The parts of a stream, each read by a thread: a disk may be slow."""
        iterator = iter(parts)
        while (part := await self._in_a_thread(next, iterator, None)) is not None:
            yield part

    def _answer(self, scope: Any, body: IO[bytes], keeps: bool) -> HttpResponseBase:
        """The response. It is closed, unless it is a stream."""
        set_script_prefix(get_script_prefix(scope))
        request_started.send(sender=type(self), scope=scope)
        try:
            request, refusal = self.create_request(scope, body)
            if request is None:
                body.close()
            response: Any = refusal if request is None else self.get_response(request)
            response._handler_class = type(self)
            if isinstance(response, FileResponse):
                response.block_size = self.chunk_size
            if not response.streaming:
                response.close()
            return cast(HttpResponseBase, response)
        finally:
            if not keeps:
                connections.close_all()


def _let_go(body: IO[bytes], done: Future[Any]) -> None:
    """Close what a request leaves whose client has gone."""
    if done.cancelled():
        body.close()
    elif done.exception() is None and done.result().streaming:
        done.result().close()


# ASGI guards: allowed origins of WebSockets, unknown addresses, and text in UTF-8 only.
#
# Django decodes addresses and forms with any codec of Python that a client names. Some codecs fail
# in Django's constructor of requests, others produce characters that no database stores.


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
