"""The OpenAI-compatible endpoint: an ASGI application for a server with send back-pressure."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext, suppress
from math import ceil
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from msgspec import Struct, field
from msgspec.structs import replace

from monitor.runtime.rows.item_isolation import FaultLog
from scheduler.facts.language_models import DayUse, Service
from scheduler.language_models.model_proxy import policy
from scheduler.language_models.model_proxy.api.book import Book
from scheduler.language_models.model_proxy.api.exchange import (
    SCHEME,
    Exchange,
    Outlet,
    Send,
    SpooledForm,
    Tickets,
)
from scheduler.language_models.model_proxy.policy import (
    BodyRate,
    Caller,
    Field,
    FormReader,
    Headers,
    InvalidForm,
    Limits,
    ModelRequest,
    Refused,
    boundary_of,
)
from scheduler.language_models.model_proxy.senders import JSON, Upstream
from scheduler.language_models.prompts.policy import over_quota

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
# Seconds until the user's next request is accepted; 0 = it is.
RateLimit = Callable[[int], float]
# The address that invalid tokens are counted for.
AddressOf = Callable[[Scope], str]
# Counts bytes of a request that arrive; raises Refused if there are too many of all requests.
Hold = Callable[[int], None]
# Runs beside the endpoint until it is cancelled.
Companion = Callable[[Book, Upstream], Awaitable[None]]
UNAUTHENTICATED = (
    "Send a token of gpucoord: Authorization: Bearer TOKEN. The page /account/ makes one."
)
REFUSED = "This token is unknown, expired or revoked. The page /account/ makes a new one."
NO_SCOPE = "This token lacks the scope `submit`. Create one with it on the page /account/."
FAULT = {"kind": "MODEL_PROXY_FAULT"}
FORM_FIELDS = ("model", "stream")
_WAIT = re.compile(r"\bwait=(\d{1,5})\b")
logger = logging.getLogger(__name__)


class Store(Struct):
    """Bytes of the bodies of each user, in memory or on disk, and how many there may be."""

    resource: str
    of_user: int
    of_all: int
    held: Counter[int] = field(default_factory=Counter)


class ModelEndpoint:
    """Requests of clients; `companion` runs while the application does."""

    def __init__(
        self,
        host: str,
        rate_limit: RateLimit = lambda _: 0.0,
        companion: Companion | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        address_of: AddressOf | None = None,
        address: str = "",
    ) -> None:
        """address: where other hosts reach the endpoint; "" = nowhere."""
        self._address, self._tickets = address, Tickets(host)
        self._host, self._rate_limit, self._companion = host, rate_limit, companion
        self._limits = limits
        self._address_of = address_of or _peer
        self._bodies = Store("memory", limits.bodies_of_user, limits.all_bodies)
        self._uploads = Store("disk space", limits.uploads_of_user, limits.all_uploads)
        self._origins = settings.CONFIG.models_cors_origins
        self._open: Counter[int] = Counter()
        self._body_rate = BodyRate()
        self._faults = FaultLog(logger)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._book = Book(self._host, self._address)
        async with Upstream(settings.CONFIG.run_as) as self._upstream:
            await self._book.sync()
            tasks = [asyncio.create_task(self._book.run())]
            if self._companion is not None:
                companion = self._companion(self._book, self._upstream)
                tasks.append(asyncio.ensure_future(companion))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._book.sync()
        self._book.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet = Outlet(send, _path(scope), policy.headers(_origin(scope), self._origins))
        try:
            await self._route(scope, receive, outlet)
        except Refused as refused:
            await outlet.refuse(refused)
        except Exception as error:
            about = {**FAULT, "method": scope["method"], "path": scope["path"]}
            self._faults.log(error, "A request to the endpoint for models failed", about)
            text = "gpucoord failed with this request; its log says why."
            await outlet.refuse(Refused(500, text, type_="server_error"))

    async def _route(self, scope: Scope, receive: Receive, outlet: Outlet) -> None:
        method, path = scope["method"], _path(scope)
        headers = _headers(scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy before the endpoint may have seen another end of this request.
            raise Refused(400, "Send either Content-Length or Transfer-Encoding.", closes=True)
        if method == "OPTIONS" and (allowed := policy.preflight(_pairs(scope), self._origins)):
            await outlet.begin(204, "", allowed)
            await outlet.end()
        elif scope["path"] == "/healthz":
            await _json(outlet, {"status": "ok"})
        elif path == "models" or path.startswith("models/"):
            _check_method(method, {"GET", "HEAD"})
            await self._caller(scope, headers)
            await self._list(path.removeprefix("models").strip("/"), outlet)
        elif path in policy.PATHS:
            _check_method(method, {"POST"})
            await self._post(path, scope, receive, outlet)
        else:
            names = ", ".join(f"/v1/{name}" for name in (*policy.PATHS, "models"))
            raise Refused(404, f"There is no such address. There are: {names}.")

    async def _caller(self, scope: Scope, headers: Mapping[str, str]) -> Caller:
        """Raises Refused."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        is_of_host = scheme.lower() == SCHEME
        if not is_of_host and scheme.lower() != "bearer":
            # As Anthropic's clients send it.
            token = headers.get("x-api-key", "")
        if not token.strip():
            raise Refused(401, UNAUTHENTICATED, code="missing_api_key")
        try:
            if is_of_host:
                user = self._tickets.user_of(token.strip(), _path(scope))
                caller = None if user is None else await self._book.caller_of_host(user)
            else:
                address = self._address_of(scope)
                caller = await self._book.caller(token.strip(), address, scope["path"])
        except DatabaseError:
            text = "The database does not answer."
            raise Refused(503, text, type_="server_error", retry_after_s=5) from None
        if caller is None:
            raise Refused(401, REFUSED, code="invalid_api_key")
        if delay := self._rate_limit(caller.user_id):
            text = f"Too many requests. Try again in {delay:.0f} s."
            raise _too_many(text, "rate_limit_exceeded", max(1, round(delay)))
        return caller

    async def _list(self, name: str, outlet: Outlet) -> None:
        situation = self._book.board.situation
        if name:
            service = await self._find(name)
            made = self._book.board.situation.made[service.name]
            await _json(outlet, policy.model_entry(service.name, made))
        else:
            names = situation.names
            rows = [(each, situation.made[names.find(each) or each]) for each in names.all()]
            await _json(outlet, policy.model_list(rows))

    async def _find(self, name: str) -> Service:
        """The service that a client means; a new one is known at once. Raises Refused."""
        board = self._book.board
        service = board.find(name)
        if service is None:
            await self._book.look_again()
            service = board.find(name)
        if service is None:
            raise policy.unknown_model(name, board.situation.made)
        return service

    async def _post(self, path: str, scope: Scope, receive: Receive, outlet: Outlet) -> None:
        headers = _headers(scope)
        caller = await self._caller(scope, headers)
        if not caller.may_submit:
            raise Refused(403, NO_SCOPE, code="missing_scope")
        async with self._request(path, scope, receive, caller) as request:
            service = await self._find(request.model)
            self._admit(request, service, caller)
            if request.model != service.name:
                request = _renamed(request, service.name)
            wait_s = _wait_s(headers, self._book.board.situation.policy.wait_s)
            exchange = Exchange(self._book.board, self._upstream, outlet, wait_s)
            await _until_client_leaves(receive, exchange.run(request, caller))

    @asynccontextmanager
    async def _request(
        self, path: str, scope: Scope, receive: Receive, caller: Caller
    ) -> AsyncIterator[ModelRequest]:
        """Read a request; its memory, or its file, is held while the context lasts."""
        headers, limits = _headers(scope), self._limits
        if headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "Send the body without Content-Encoding.")
        kind = headers.get("content-type", "")
        is_form = kind.partition(";")[0].strip().lower() == "multipart/form-data"
        if is_form and path not in policy.FORMS:
            raise Refused(415, f"Send {path} as JSON.")
        passed = policy.sent(_pairs(scope))
        priority = headers.get(policy.PRIORITY_HEADER, "")
        with self._hold(caller.user_id, self._uploads if is_form else self._bodies) as hold:
            seconds = limits.upload_s if is_form else limits.body_s
            most = limits.upload if is_form else limits.body
            pieces = _body(headers, receive, hold, most)
            with closing(SpooledForm(Path(settings.DATA))) if is_form else nullcontext() as spool:
                try:
                    async with asyncio.timeout(seconds):
                        if spool is not None:
                            request = await _form(path, kind, pieces, spool, priority)
                        else:
                            body = b"".join([piece async for piece in pieces])
                except TimeoutError:
                    raise Refused(408, "The body did not arrive in time.") from None
                if spool is None:
                    self._check_rate(caller, len(body))
                    request = policy.parse(path, body, priority)
                    # Some clients name another type, or none.
                    passed = (*_without_type(passed), *JSON)
                query = scope.get("query_string", b"")
                yield replace(request, headers=passed, query=query)

    @contextmanager
    def _hold(self, user: int, store: Store) -> Iterator[Hold]:
        """Counts a request and its bytes until it is answered. Raises Refused."""
        held, limits = 0, self._limits
        if self._open[user] >= limits.requests_of_user:
            text = f"{limits.requests_of_user} of your requests are open. Try again later."
            raise _too_many(text, "too_many_open", 5)

        def hold(size: int) -> None:
            nonlocal held
            held += size
            store.held[user] += size
            if store.held[user] > store.of_user:
                text = f"Your requests in progress take too much {store.resource}. Try again later."
                raise _too_many(text, "too_much_memory", 5)
            if store.held.total() > store.of_all:
                text = f"The requests in progress take too much {store.resource}. Try again later."
                raise Refused(503, text, type_="server_error", retry_after_s=5)

        self._open[user] += 1
        try:
            yield hold
        finally:
            _take_from(store.held, user, held)
            _take_from(self._open, user, 1)

    def _check_rate(self, caller: Caller, size: int) -> None:
        """Raises Refused."""
        if delay := self._body_rate.delay(caller.user_id, size, time.monotonic()):
            wait_s = ceil(delay)
            text = f"Your requests are too large together. Try again in {wait_s} s."
            raise _too_many(text, "too_many_bytes", wait_s)

    def _admit(self, request: ModelRequest, service: Service, caller: Caller) -> None:
        """Raises Refused."""
        board = self._book.board
        if not service.is_enabled:
            raise Refused(503, f"An operator has switched {service.name} off.", code="disabled")
        highest = caller.quota.priority
        if highest is not None and request.priority > highest:
            text = f"{policy.PRIORITY_HEADER} may be at most {highest} by your quota."
            raise Refused(403, text, code="priority_too_high")
        most = board.situation.policy.waiting
        if board.waiting_of(caller.name) >= most:
            text = f"{most} of your requests wait already. Try again later."
            raise _too_many(text, "too_many_waiting", 10)
        came = board.came_since(caller.name, caller.written)
        used = DayUse(caller.used.requests + came, caller.used.tokens)
        if reason := over_quota(caller.quota, used):
            raise _too_many(reason, "insufficient_quota", None)


async def _body(
    headers: Mapping[str, str], receive: Receive, hold: Hold, most: int
) -> AsyncIterator[bytes]:
    """The pieces of a body as they come. Raises Refused: it is too large, or all are together."""
    too_large = Refused(413, f"The body may have at most {most // 1024**2} MiB.")
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise too_large
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "The client left before its body was complete.")
        piece = message.get("body", b"")
        hold(len(piece))
        size, more = size + len(piece), message.get("more_body", False)
        if size > most:
            raise too_large
        yield piece


async def _form(
    path: str, kind: str, pieces: AsyncIterator[bytes], spool: SpooledForm, priority: str
) -> ModelRequest:
    """Read a form into the spool. Raises Refused."""
    try:
        reader = FormReader(boundary_of(kind), FORM_FIELDS)
        async for piece in pieces:
            reader.feed(piece)
            await spool.write(piece)
    except InvalidForm as error:
        raise Refused(400, str(error)) from None
    await spool.flush()
    if not reader.is_complete:
        raise Refused(400, "The form ends before its last boundary.")
    spool.model = reader.fields.get("model")
    model, stream = (_text(reader.fields.get(name)) for name in FORM_FIELDS)
    return policy.form(path, spool, model, stream, priority)


def _text(value: Field | None) -> str:
    return "" if value is None else value.value.decode("utf-8", "replace")


def _renamed(request: ModelRequest, model: str) -> ModelRequest:
    """The request as the model's server expects it, whose client used another name of the model."""
    if isinstance(request.body, bytes):
        return replace(request, model=model, body=policy.renamed(request.body, model))
    request.body.rename(model)
    return replace(request, model=model)


def _without_type(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    return (pair for pair in headers if pair[0] != b"content-type")


def _take_from(counter: Counter[int], user: int, size: int) -> None:
    """Users without requests are forgotten."""
    counter[user] -= size
    if not counter[user]:
        del counter[user]


async def _until_client_leaves(receive: Receive, work: Awaitable[None]) -> None:
    """Do the work; cancel it when the client leaves, which ends the request to the instance."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
    finally:
        for each in (task, gone):
            each.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _peer(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _path(scope: Scope) -> str:
    """Below the base of the API, without slashes at its ends."""
    return str(scope["path"]).removeprefix("/v1").strip("/")


def _pairs(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Headers with names in lower case, as servers of ASGI give them."""
    return list(scope["headers"])


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _origin(scope: Scope) -> bytes:
    return next((value for name, value in scope["headers"] if name == b"origin"), b"")


def _check_method(method: str, allowed: set[str]) -> None:
    if method not in allowed:
        raise Refused(405, f"Use {' or '.join(sorted(allowed))} here.")


def _too_many(text: str, code: str, retry_after_s: int | None) -> Refused:
    return Refused(429, text, type_="rate_limit_error", code=code, retry_after_s=retry_after_s)


def _wait_s(headers: Mapping[str, str], longest: float) -> float:
    """The header `Prefer: wait=SECONDS` (RFC 7240) shortens the wait."""
    match = _WAIT.search(headers.get("prefer", ""))
    return min(longest, float(match[1])) if match else longest


async def _json(outlet: Outlet, value: object) -> None:
    await outlet.begin(200, "application/json")
    await outlet.piece(json.dumps(value).encode())
    await outlet.end()
