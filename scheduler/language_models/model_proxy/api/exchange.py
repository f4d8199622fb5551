"""One request of the endpoint: it waits for an instance; its answer is passed on as it comes."""

from __future__ import annotations

import asyncio
import errno
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from datetime import timedelta
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

from django.core import signing

from scheduler.facts.language_models import MOST_ATTEMPTS, Instance, Wait
from scheduler.language_models.model_proxy import policy as openai
from scheduler.language_models.model_proxy.api.book import Board, Place
from scheduler.language_models.model_proxy.policy import (
    Caller,
    Field,
    Headers,
    ModelRequest,
    Refused,
)
from scheduler.language_models.model_proxy.senders import (
    InstanceFailed,
    NotReached,
    Reply,
    Silent,
    Upstream,
)
from scheduler.language_models.prompts.policy import (
    ASK_AGAIN_S,
    PromptPolicy,
    retry_after_s,
    sentence,
)

# Tickets for requests that the endpoint of one host passes on to that of another.
#
# The other host gets no token of the user. A ticket is signed with the secret key, which all hosts
# share. It is for one host, user and path, and valid once, for two minutes. An endpoint that starts
# knows of no used ones, and refuses those from before its start.


SCHEME = "gpucoord-host"
SALT, LIVES = "gpucoord.request-of-another-host", timedelta(minutes=2)


def ticket(host: str, user_id: int, path: str) -> str:
    """path: of the request, below the base of the API."""
    once = secrets.token_hex(8)
    body = {"host": host, "user": user_id, "path": path, "once": once, "at": time.time()}
    return signing.dumps(body, salt=SALT)


class Tickets:
    """Checks the tickets that other hosts send to `host`."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._began = time.time()
        # Used ones, the oldest first, until they expire.
        self._used: dict[str, float] = {}

    def user_of(self, text: str, path: str) -> int | None:
        """The id of the user; None: the ticket is not valid, or was used."""
        try:
            body = signing.loads(text, salt=SALT, max_age=LIVES)
        except signing.BadSignature:
            return None
        self._forget_expired()
        if body["at"] < self._began:
            return None
        if (body["host"], body["path"]) != (self._host, path) or body["once"] in self._used:
            return None
        self._used[body["once"]] = time.monotonic() + LIVES.total_seconds()
        return int(body["user"])

    def _forget_expired(self) -> None:
        while self._used:
            oldest = next(iter(self._used))
            if self._used[oldest] > time.monotonic():
                return
            del self._used[oldest]


Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# A waiting stream begins after the first interval; its reason is repeated at the second one.
FIRST_COMMENT_S, COMMENT_EVERY_S = 1.0, 10.0
EVENTS = f"{openai.TYPE}; charset=utf-8"
# The server does not do what this request asks for; it is not broken.
NOT_IMPLEMENTED = 501
UNAUTHORIZED = 401
HIGHEST = 599
ONCE = "It may have worked on the request, so gpucoord does not send it again."


class Outlet:
    """The answer to the client: a head, then pieces. `send` waits while the client reads slowly.

    path: of the request, for the form of errors. extra: headers of every answer.
    """

    def __init__(self, send: Send, path: str = "", extra: Headers = ()) -> None:
        self._send, self._path, self._extra = send, path, extra
        self.is_begun = False
        self.has_body = False
        # Of a stream of events in plain text, into which comments and errors may be put.
        self._events: openai.WholeEvents | None = None

    async def begin(
        self, status: int, content_type: str, passed: Headers = (), **headers: str
    ) -> None:
        """passed: further headers, of the model's server."""
        self.is_begun = True
        is_plain = all(name != b"content-encoding" for name, _ in passed)
        if is_plain and openai.is_stream(content_type):
            self._events = openai.WholeEvents()
            # An error may follow, so the length is not known.
            headers.pop("content_length", None)
        named = {
            "content-type": content_type,
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            "x-content-type-options": "nosniff",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        own = [(name.encode(), value.encode("latin-1")) for name, value in named.items() if value]
        start = {"status": status, "headers": [*own, *passed, *self._extra]}
        await self._send({"type": "http.response.start", **start})

    async def piece(self, body: bytes) -> None:
        self.has_body = True
        if self._events is not None:
            body = self._events.feed(body)
            if not body:
                return
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        rest = b"" if self._events is None else self._events.end()
        await self._send({"type": "http.response.body", "body": rest, "more_body": False})

    async def comment(self, text: str) -> None:
        if not self.is_begun:
            await self.begin(200, EVENTS)
        await self._send(
            {"type": "http.response.body", "body": openai.comment(text), "more_body": True}
        )

    async def refuse(self, refused: Refused) -> None:
        """An error answer, or an error event in a stream that has begun.

        Another answer that has begun just ends, incomplete, so that its connection is closed. So
        does a stream within an event: the error would be read as a part of it.
        """
        if self.is_begun and (self._events is None or not self._events.is_whole):
            return
        if self.is_begun:
            body = openai.error_event(refused, self._path)
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
            return
        after = refused.retry_after_s
        more = {} if after is None else {"retry_after": str(after)}
        if not refused.repeats:
            more["x_should_retry"] = "false"
        if refused.closes:
            more["connection"] = "close"
        await self.begin(refused.status, "application/json", (), **more)
        await self.piece(openai.error_body(refused, self._path))
        await self.end()


class RunsElsewhere(Exception):
    """Only other hosts have ready instances of the model."""


class Exchange:
    """wait_s: how long the request may wait for an instance."""

    def __init__(self, board: Board, upstream: Upstream, outlet: Outlet, wait_s: float) -> None:
        self._board, self._upstream, self._outlet = board, upstream, outlet
        self._wait_s = wait_s

    async def run(self, request: ModelRequest, caller: Caller) -> None:
        """Answer the request; its model is the name of a service. Raises Refused."""
        try:
            await self._run_here(request, caller)
        except RunsElsewhere:
            await self._run_elsewhere(request, caller)

    async def _run_here(self, request: ModelRequest, caller: Caller) -> None:
        """Another instance gets it only if the first one got no byte of it."""
        policy = self._board.situation.policy
        problem = ""
        with self._board.enter(request.model, caller.name, request.priority) as place:
            try:
                for _ in range(MOST_ATTEMPTS):
                    await self._taken(place, request)
                    try:
                        await self._attempt(place, request, policy)
                        return
                    except NotReached as error:
                        problem = str(error)
                        self._board.retry(place, problem)
                raise Refused(502, _gave_up(request.model, problem), type_="server_error")
            except RunsElsewhere:
                self._board.withdraw(place)
                raise
            except Refused:
                if not place.is_counted:
                    self._board.failed(place)
                raise

    async def _attempt(self, place: Place, request: ModelRequest, policy: PromptPolicy) -> None:
        """Send the request to the instance that has taken it. Raises NotReached and Refused."""
        try:
            async with asyncio.timeout(policy.answer_s) as limit:
                await self._pass_on(place, request, policy, limit)
        except NotReached:
            raise
        except Silent as error:
            self._board.fault(place, str(error))
            raise self._timed_out(f"sent nothing for {policy.stall_s:g} s (stall_s)") from None
        except InstanceFailed as error:
            self._board.suspect(place, str(error))
            raise self._broke_off(request.model, str(error)) from None
        except TimeoutError:
            if place.first_s is None:
                self._board.fault(place, f"its server sent nothing for {policy.answer_s:g} s")
            raise self._timed_out(f"took longer than {policy.answer_s:g} s (answer_s)") from None

    def _timed_out(self, how: str) -> Refused:
        if self._outlet.has_body:
            text = f"The answer broke off: the model's server {how}."
        else:
            text = f"The model's server {how}. {ONCE}"
        return Refused(504, text, type_="server_error", code="timeout", repeats=False)

    def _broke_off(self, model: str, how: str) -> Refused:
        if self._outlet.has_body:
            return Refused(502, f"The answer broke off: {how}.", type_="server_error")
        return Refused(502, f"{model} failed: {how}. {ONCE}", type_="server_error")

    async def _taken(self, place: Place, request: ModelRequest) -> None:
        """Wait until an instance takes the request; a stream says meanwhile why it waits."""
        until = time.monotonic() + self._wait_s
        pause = FIRST_COMMENT_S
        while not place.taken.done():
            service = self._board.service(request.model)
            if service is not None and service.elsewhere:
                # It would wait in vain.
                raise RunsElsewhere
            left = until - time.monotonic()
            if left <= 0:
                raise self._too_long(place)
            await asyncio.wait([place.taken], timeout=min(left, pause))
            if not place.taken.done() and request.streams and time.monotonic() < until:
                wait = self._board.wait_of(place)
                await self._outlet.comment(sentence(wait) if wait else "waiting")
                pause = COMMENT_EVERY_S

    async def _run_elsewhere(self, request: ModelRequest, caller: Caller) -> None:
        """Pass the request on to the endpoint of a host that runs the model, which counts it."""
        service = self._board.service(request.model)
        if service is None or caller.is_passed_on or not service.endpoints:
            # The other host has just found it here.
            text = service.elsewhere if service else f"There is no model {request.model} any more."
            raise Refused(421, text, code="model_on_other_host")
        for there in service.endpoints:
            try:
                await self._pass_to(there, request, caller)
                return
            except NotReached:
                continue
            except InstanceFailed as error:
                how = f"its host {there.host} did not answer: {error}"
            except TimeoutError:
                how = f"its host {there.host} did not answer in time"
            raise self._broke_off(request.model, how)
        names = " and ".join(there.host for there in service.endpoints)
        text = f"{request.model} runs on {names}, whose endpoint can't be reached from here."
        raise Refused(503, text, type_="server_error", retry_after_s=ASK_AGAIN_S)

    async def _pass_to(self, there: Instance, request: ModelRequest, caller: Caller) -> None:
        """Raises InstanceFailed, TimeoutError and Refused."""
        policy = self._board.situation.policy
        signed = f"{SCHEME} {ticket(there.host, caller.user_id, request.path)}"
        headers = (
            *request.headers,
            (b"authorization", signed.encode()),
            (openai.PRIORITY_HEADER.lower().encode(), b"%d" % request.priority),
            (b"prefer", b"wait=%d" % self._wait_s),
        )
        # The other endpoint sends comments into a stream that waits.
        stall_s = max(policy.stall_s, 2 * COMMENT_EVERY_S) if request.streams else None
        target, body = request.target, request.body
        async with asyncio.timeout(self._wait_s + policy.answer_s):
            async with self._upstream.post(there, target, body, stall_s, headers) as reply:
                await self._pass_reply(reply, there.host)
            await self._outlet.end()

    async def _pass_reply(self, reply: Reply, host: str) -> None:
        """The answer of another host's endpoint as it is, also an error."""
        if reply.status == UNAUTHORIZED:
            text = f"The host {host} refused the signature: its secret_key or its clock differs."
            raise Refused(502, text, type_="server_error")
        pieces = reply.pieces()
        if self._outlet.is_begun:
            if reply.status >= 300:
                raise Refused(reply.status, openai.error_text(await reply.error_body()))
            _check_stream(reply)
            pieces = _continued(reply.plain_pieces())
        else:
            await self._begin(reply)
        async for piece in pieces:
            await self._outlet.piece(piece)

    def _too_long(self, place: Place) -> Refused:
        wait = self._board.wait_of(place)
        return busy(wait, place.request.service)

    async def _pass_on(
        self, place: Place, request: ModelRequest, policy: PromptPolicy, limit: asyncio.Timeout
    ) -> None:
        """A whole answer may be silent until it is complete; only a stream can stall."""
        instance = place.taken.result()
        text_size = len(request.body) if isinstance(request.body, bytes) else 0
        counter = openai.TokenCounter(request_bytes=text_size)
        stall_s = policy.stall_s if request.streams else None
        began_s = time.monotonic()
        try:
            async with self._upstream.post(
                instance, request.target, request.body, stall_s, request.headers
            ) as reply:
                if reply.status >= 300:
                    await self._pass_error(place, reply)
                    self._board.failed(place)
                    return
                await self._pass_pieces(place, reply, counter)
        except asyncio.CancelledError:
            # The client left: what was answered until then counts.
            if counter.size:
                self._board.answered(place, counter.tokens(), estimated=True)
            elif not limit.expired() and time.monotonic() - began_s >= policy.stall_s:
                self._board.fault(place, f"its server sent nothing for {policy.stall_s:g} s")
            raise
        self._board.answered(place, counter.tokens(), estimated=counter.reported() is None)
        await self._outlet.end()

    async def _pass_pieces(self, place: Place, reply: Reply, counter: openai.TokenCounter) -> None:
        pieces = reply.pieces()
        if self._outlet.is_begun:
            _check_stream(reply)
            pieces = _continued(reply.plain_pieces())
        async for piece in pieces:
            if place.first_s is None:
                place.first_s = time.monotonic()
            if not self._outlet.is_begun:
                await self._begin(reply)
            counter.feed(piece)
            await self._outlet.piece(piece)
        if not self._outlet.is_begun:
            await self._begin(reply)

    async def _begin(self, reply: Reply) -> None:
        length = {} if reply.length is None else {"content_length": reply.length}
        await self._outlet.begin(reply.status, reply.content_type, reply.headers, **length)

    async def _pass_error(self, place: Place, reply: Reply) -> None:
        """The model's server refuses the request: its own answer, as it is."""
        if reply.status < 400:
            text = openai.redirect_text(reply.status, reply.location)
            raise Refused(502, text, type_="server_error", code="redirected", repeats=False)
        if reply.status >= 500 and reply.status != NOT_IMPLEMENTED:
            self._board.fault(place, f"its server answered {reply.status}")
        if reply.status > HIGHEST:
            text = f"The model's server answered with {reply.status}, which is no status of HTTP."
            raise Refused(502, text, type_="server_error")
        if self._outlet.is_begun:
            text = openai.error_text(await reply.error_body())
            await self._outlet.refuse(Refused(reply.status, text))
            return
        await self._begin(reply)
        async for piece in reply.pieces():
            await self._outlet.piece(piece)
        await self._outlet.end()


def _check_stream(reply: Reply) -> None:
    """The client waits for events already. Raises Refused."""
    if not openai.is_stream(reply.content_type):
        kind = reply.content_type.partition(";")[0][:100] or "no content type"
        text = f"The model's server does not stream this request: it answered with {kind}."
        raise Refused(502, text, type_="server_error", code="not_streamed", repeats=False)


async def _continued(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The stream of a server after comments: a mark is one only at the beginning of a stream."""
    is_first = True
    async for piece in pieces:
        yield openai.without_bom(piece) if is_first else piece
        is_first = False


def busy(wait: Wait | None, model: str) -> Refused:
    why = sentence(wait) if wait is not None else "no instance is ready"
    return Refused(
        503,
        f"{model} can't answer now: {why}. Try again later.",
        type_="server_error",
        code="model_not_ready",
        retry_after_s=retry_after_s(wait),
    )


def _gave_up(model: str, problem: str) -> str:
    return f"{MOST_ATTEMPTS} attempts to reach {model} failed: {problem}. Ask an operator."


# Forms with files that clients send: on disk until an instance has them, whatever their size.


# Smaller forms stay in memory.
IN_MEMORY = 256 * 1024
AT_ONCE = 256 * 1024


class SpooledForm:
    """The body of a form, in a file without a name; it ends with the process, or with `close`."""

    def __init__(self, folder: Path) -> None:
        self._file = SpooledTemporaryFile(IN_MEMORY, "w+b", dir=str(folder))  # noqa: SIM115
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._size = 0
        # Where the form names its model.
        self.model: Field | None = None
        # Replaced bytes: from, to, and what the instance gets instead.
        self._splice = (0, 0, b"")

    @property
    def size(self) -> int:
        start, end, text = self._splice
        return self._size - (end - start) + len(text)

    async def write(self, piece: bytes) -> None:
        """Raises Refused: the disk is full."""
        self._buffer.append(piece)
        self._buffered += len(piece)
        self._size += len(piece)
        if self._buffered >= AT_ONCE:
            await self.flush()

    async def flush(self) -> None:
        data, self._buffer, self._buffered = b"".join(self._buffer), [], 0
        try:
            if self._size <= IN_MEMORY:
                self._file.write(data)
            else:
                await asyncio.to_thread(self._file.write, data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            text = "The server's disk has no room for this upload. Try again later."
            raise Refused(507, text, type_="server_error", retry_after_s=60) from None

    def rename(self, model: str) -> None:
        if self.model is not None:
            self._splice = (self.model.start, self.model.end, model.encode())

    async def pieces(self) -> AsyncIterator[bytes]:
        start, end, text = self._splice
        async for piece in self._part(0, start):
            yield piece
        if text:
            yield text
        async for piece in self._part(end, self._size):
            yield piece

    async def _part(self, start: int, end: int) -> AsyncIterator[bytes]:
        while start < end:
            piece = await asyncio.to_thread(self._read, start, min(AT_ONCE, end - start))
            start += len(piece)
            yield piece

    def _read(self, start: int, size: int) -> bytes:
        self._file.seek(start)
        data: bytes = self._file.read(size)
        return data

    def close(self) -> None:
        self._file.close()
