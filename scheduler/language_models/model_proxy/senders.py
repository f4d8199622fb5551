"""Sends requests to instances of models and reads their answers as they come.

HTTP/1.1 by h11 on asyncio streams. A stream is read only as fast as its client reads. This takes
a fraction of the CPU time of httpx, which counts for each token of each stream.
"""

from __future__ import annotations

import asyncio
import select
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import h11
from msgspec import Struct

from scheduler.facts.language_models import Instance
from scheduler.language_models.model_proxy import policy as header_list
from scheduler.language_models.model_proxy.policy import Headers, Upload
from scheduler.language_models.model_services.probes import is_taken, uid_of

CONNECT_S = 3.0
LONGEST_ERROR = 64 * 1024
CHECKED_FOR_S = 0.2
MOST_CHECKED = 1000
READS_BYTES = 64 * 1024
# Answers before the answer (1xx).
MOST_HINTS = 20
# Servers close idle connections; common ones do so after 5 s.
KEPT_FOR_S = 4.0
MOST_KEPT = 64
BROKEN = (OSError, EOFError, h11.RemoteProtocolError)
BROKE_OFF = "its server broke the connection off"
JSON: Headers = ((b"content-type", b"application/json"),)


class InstanceFailed(Exception):
    """The instance did not answer, or broke off; the text says how. It may have executed it."""


class NotReached(InstanceFailed):
    """The instance got no byte of the request, so another one may have it."""


class Silent(InstanceFailed):
    """The instance sent nothing in time."""


class Head(Struct, frozen=True):
    """Status and headers of an answer; names are in lower case."""

    status: int
    headers: Headers

    def get(self, name: bytes) -> str:
        """The first value; "" = it lacks this header."""
        values = (value for key, value in self.headers if key == name)
        return next(values, b"").decode("latin-1")


class Connection:
    """A connection to a server, for one request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.kept_at_s = 0.0

    async def ask(
        self,
        host: str,
        target: str,
        body: bytes | Upload,
        headers: Headers,
        stall_s: float | None,
    ) -> Head:
        """Send a POST; returns the head of the answer. stall_s: None = without a limit.

        Raises BROKEN and TimeoutError.
        """
        size = len(body) if isinstance(body, bytes) else body.size
        request = h11.Request(
            method=b"POST",
            target=target.encode("ascii", "replace"),
            headers=[
                (b"host", host.encode()),
                (b"content-length", b"%d" % size),
                (b"accept-encoding", b"identity"),
                *headers,
            ],
        )
        send = self._http.send
        if not isinstance(body, bytes):
            self._writer.write(send(request) or b"")
            return await self._upload(body, stall_s)
        parts = (send(request), send(h11.Data(data=body)), send(h11.EndOfMessage()))
        # Not drained, as a server may answer before it has read a large body.
        self._writer.write(b"".join(part for part in parts if part))
        async with asyncio.timeout(stall_s):
            return await self._head()

    async def _upload(self, body: Upload, stall_s: float | None) -> Head:
        """Send the body until it has been sent, or the server answers before that."""
        sending = asyncio.ensure_future(self._send(body))
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait([sending, reading], return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(stall_s):
                await reading
                return await self._head()
        finally:
            for task in (sending, reading):
                task.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)

    async def _send(self, body: Upload) -> None:
        async for piece in body.pieces():
            self._writer.write(self._http.send(h11.Data(data=piece)) or b"")
            await self._writer.drain()
        self._http.send(h11.EndOfMessage())

    async def _head(self) -> Head:
        hints = 0
        while not isinstance(event := await self._event(), h11.Response):
            hints += 1
            if not isinstance(event, h11.InformationalResponse) or hints > MOST_HINTS:
                raise EOFError
        return Head(event.status_code, tuple(event.headers))

    async def pieces(self, stall_s: float | None) -> AsyncIterator[bytes]:
        """The body as it comes; what came together is one piece. Raises BROKEN, TimeoutError."""
        while True:
            whole = []
            while isinstance(event := self._http.next_event(), h11.Data):
                whole.append(event.data)
            if whole:
                yield b"".join(whole)
            if event is h11.NEED_DATA:
                async with asyncio.timeout(stall_s):
                    await self._read()
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise EOFError

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            await self._read()
        return event

    async def _read(self) -> None:
        self._http.receive_data(await self._reader.read(READS_BYTES))

    def is_reusable(self) -> bool:
        """Whether the answer has been read completely, and both sides keep the connection."""
        http = self._http
        if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
            return False
        http.start_next_cycle()
        return True

    @property
    def is_open(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing())

    def is_idle(self) -> bool:
        """Whether the server keeps it open, and has sent nothing that no request asked for.

        The kernel knows before the event loop does. As a request that was sent is never repeated,
        this is asked right before.
        """
        poll = select.poll()
        poll.register(self._writer.get_extra_info("socket"), select.POLLIN)
        return self.is_open and not poll.poll(0)

    def close(self) -> None:
        """At once: the server notices that its answer is not wanted."""
        self._writer.transport.abort()


class Reply:
    """An answer whose head has come."""

    def __init__(self, connection: Connection, head: Head, stall_s: float | None) -> None:
        self._connection, self._head, self._stall_s = connection, head, stall_s
        self.status = head.status
        self.content_type = head.get(b"content-type")
        self.length: str | None = head.get(b"content-length") or None
        self.encoding = head.get(b"content-encoding").strip().lower()
        self.location = head.get(b"location")

    @property
    def headers(self) -> Headers:
        """Those that the client gets."""
        return header_list.returned(self._head.headers)

    @property
    def is_encoded(self) -> bool:
        return self.encoding not in ("", "identity")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises InstanceFailed when it breaks off."""
        try:
            async for piece in self._connection.pieces(self._stall_s):
                yield piece
        except (*BROKEN, TimeoutError) as error:
            raise _failure(error) from None

    async def plain_pieces(self) -> AsyncIterator[bytes]:
        """The body without its encoding. Raises InstanceFailed."""
        if self.is_encoded and self.encoding not in ("gzip", "x-gzip", "deflate"):
            raise InstanceFailed(f"its server answered with the encoding {self.encoding[:50]!r}")
        # Of gzip and of zlib, by their first bytes.
        decoder = zlib.decompressobj(wbits=47) if self.is_encoded else None
        async for piece in self.pieces():
            if decoder is None:
                yield piece
                continue
            rest = piece
            while rest and not decoder.eof:
                try:
                    plain = decoder.decompress(rest, READS_BYTES)
                except zlib.error:
                    text = f"its server sent an answer that is not in {self.encoding}"
                    raise InstanceFailed(text) from None
                rest = decoder.unconsumed_tail
                if plain:
                    yield plain
        if decoder is not None and (plain := decoder.flush()):
            yield plain

    async def error_body(self) -> bytes:
        """The body of an error answer, at most LONGEST_ERROR."""
        body = b""
        async for piece in self.plain_pieces():
            body += piece
            if len(body) > LONGEST_ERROR:
                break
        return body[:LONGEST_ERROR]


class Upstream:
    """The connections to all instances of this host, and to the endpoints of other hosts.

    Proxies of the environment are not used. run_as: the setting; it decides about
    the account of an instance.
    """

    def __init__(self, run_as: str = "auto") -> None:
        self._run_as = run_as
        self._checked_until: dict[tuple[int, str], float] = {}
        # Idle connections by instance, the newest last.
        self._kept: dict[tuple[int, str], list[Connection]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connections in self._kept.values():
            for connection in connections:
                connection.close()
        self._kept = {}

    @asynccontextmanager
    async def post(
        self,
        of: Instance,
        target: str,
        body: bytes | Upload,
        stall_s: float | None,
        headers: Headers = JSON,
    ) -> AsyncIterator[Reply]:
        """Send a request once. Leaving the context ends the connection, and so the generation.

        target: below the base of the instance's API. stall_s: how long the server may be silent;
        None = without a limit. Raises NotReached, also when another account listens on the
        instance's port, and InstanceFailed when there is no answer.
        """
        url = urlsplit(of.url)
        connection = self._take_kept(of) or await self._connect(of, url.hostname, url.port)
        try:
            try:
                path = f"{url.path}/{target}"
                head = await connection.ask(url.netloc, path, body, headers, stall_s)
            except (*BROKEN, TimeoutError) as error:
                raise _failure(error) from None
            yield Reply(connection, head, stall_s)
        finally:
            self._give_back(of, connection)

    async def _connect(self, of: Instance, host: str | None, port: int | None) -> Connection:
        """A new connection. A kept one stays with the process that was checked."""
        host, port = host or "", port or 80
        if not of.host:
            await self._check_listener(of, port)
        try:
            async with asyncio.timeout(CONNECT_S):
                return Connection(*await asyncio.open_connection(host, port, limit=READS_BYTES))
        except (OSError, TimeoutError):
            raise NotReached("its server does not accept connections") from None

    def _take_kept(self, of: Instance) -> Connection | None:
        kept = self._kept.get((of.id, of.url), [])
        oldest_s = time.monotonic() - KEPT_FOR_S
        while kept:
            connection = kept.pop()
            if connection.kept_at_s > oldest_s and connection.is_idle():
                return connection
            connection.close()
        return None

    def _give_back(self, of: Instance, connection: Connection) -> None:
        """Keep the connection for the next request; close it after an incomplete answer."""
        if not (connection.is_open and connection.is_reusable()):
            connection.close()
            return
        self._drop_old()
        connection.kept_at_s = time.monotonic()
        self._kept.setdefault((of.id, of.url), []).append(connection)

    def _drop_old(self) -> None:
        """Close connections that were idle for too long; all of them if there are too many."""
        oldest_s = time.monotonic() - KEPT_FOR_S
        if sum(map(len, self._kept.values())) >= MOST_KEPT:
            oldest_s = time.monotonic()
        for key, connections in list(self._kept.items()):
            for connection in connections:
                if connection.kept_at_s <= oldest_s:
                    connection.close()
            young = [each for each in connections if each.kept_at_s > oldest_s]
            if young:
                self._kept[key] = young
            else:
                del self._kept[key]

    async def _check_listener(self, of: Instance, port: int) -> None:
        """Raises NotReached. A result holds for CHECKED_FOR_S."""
        now_s = time.monotonic()
        if now_s < self._checked_until.get((port, of.account), 0.0):
            return
        # A directory service of the host may be slow to name the account.
        if await asyncio.to_thread(self._is_taken, port, of.account):
            raise NotReached(f"a process of another account listens on its port {port}")
        if len(self._checked_until) >= MOST_CHECKED:
            self._checked_until.clear()
        self._checked_until[port, of.account] = now_s + CHECKED_FOR_S

    def _is_taken(self, port: int, account: str) -> bool:
        return is_taken(port, uid_of(account, self._run_as))


def _failure(error: Exception) -> InstanceFailed:
    if isinstance(error, TimeoutError):
        return Silent("its server sent nothing in time")
    return InstanceFailed(BROKE_OFF)
