"""Sends requests to instances of models and reads their answers as they come.

HTTP/1.1 by h11 on asyncio streams. A stream is read only as fast as its client reads. This takes
a fraction of the CPU time of httpx, which counts for each token of each stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self
from urllib.parse import SplitResult, urlsplit

import h11

from scheduler.facts.prompts import Instance
from scheduler.model_services.probes import is_taken, uid_of

CONNECT_S = 3.0
# A server that is starting or ending, or has too much to do: another instance may answer.
BUSY = frozenset({502, 503, 504})
LONGEST_ERROR = 64 * 1024
CHECKED_FOR_S = 0.2
MOST_CHECKED = 1000
READS_BYTES = 64 * 1024
# Servers close idle connections; common ones do so after 5 s.
KEPT_FOR_S = 4.0
MOST_KEPT = 64
BROKEN = (OSError, EOFError, h11.RemoteProtocolError)
BROKE_OFF = "its server broke the connection off"


class InstanceFailed(Exception):
    """The instance did not answer, or broke off; the text says how."""


class Stale(Exception):
    """The server closed a kept connection before it began to answer."""


class Connection:
    """A connection to a server, for one request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.kept_at_s = 0.0
        self.is_reused = False

    async def ask(
        self, host: str, path: str, body: bytes, stall_s: float
    ) -> tuple[int, dict[str, str]]:
        """Send a POST; returns the status and the headers of the answer.

        Raises BROKEN, TimeoutError, and Stale: the request may be sent on another connection.
        """
        head = h11.Request(
            method="POST",
            target=path,
            headers=[
                ("Host", host),
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Accept-Encoding", "identity"),
                ("Accept", "*/*"),
                ("User-Agent", "gpucoord"),
            ],
        )
        send = self._http.send
        try:
            parts = (send(head), send(h11.Data(data=body)), send(h11.EndOfMessage()))
            self._writer.write(b"".join(part for part in parts if part))
            async with asyncio.timeout(stall_s):
                await self._writer.drain()
                while not isinstance(event := await self._event(), h11.Response):
                    if not isinstance(event, h11.InformationalResponse):
                        raise EOFError
        except BROKEN:
            if self.is_reused:
                raise Stale from None
            raise
        return event.status_code, {
            name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers
        }

    async def pieces(self, stall_s: float) -> AsyncIterator[bytes]:
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

    def close(self) -> None:
        """At once: the server notices that its answer is not wanted."""
        self._writer.transport.abort()


class Reply:
    """An answer whose head has come."""

    def __init__(
        self, connection: Connection, status: int, headers: dict[str, str], stall_s: float
    ) -> None:
        self._connection, self._stall_s = connection, stall_s
        self.status = status
        self.content_type = headers.get("content-type", "application/json")
        self.length: str | None = headers.get("content-length")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises InstanceFailed when it breaks off."""
        try:
            async for piece in self._connection.pieces(self._stall_s):
                yield piece
        except (*BROKEN, TimeoutError) as error:
            raise InstanceFailed(_words(error)) from None

    async def error_body(self) -> bytes:
        """The body of an error answer, at most LONGEST_ERROR."""
        body = b""
        async for piece in self.pieces():
            body += piece
            if len(body) > LONGEST_ERROR:
                break
        return body[:LONGEST_ERROR]


class Upstream:
    """The connections to all instances of this host. Proxies of the environment are not used.

    run_as: the setting; it decides about the account of an instance.
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
        self, of: Instance, path: str, body: bytes, stall_s: float
    ) -> AsyncIterator[Reply]:
        """Send a JSON body. Leaving the context ends the connection, and so the generation.

        Raises InstanceFailed when there is no answer, or one of BUSY, and when another account
        listens on the instance's port.
        """
        url = urlsplit(f"{of.url}/{path}")
        connection = self._take_kept(of) or await self._connect(of, url)
        try:
            try:
                head = await self._ask(connection, url, body, stall_s)
            except Stale:
                connection.close()
                connection = await self._connect(of, url)
                head = await self._ask(connection, url, body, stall_s)
            if head[0] in BUSY:
                raise InstanceFailed(f"its server answered {head[0]}")
            yield Reply(connection, *head, stall_s)
        finally:
            self._give_back(of, connection)

    async def _ask(
        self, connection: Connection, url: SplitResult, body: bytes, stall_s: float
    ) -> tuple[int, dict[str, str]]:
        try:
            return await connection.ask(url.netloc, url.path, body, stall_s)
        except (*BROKEN, TimeoutError) as error:
            raise InstanceFailed(_words(error)) from None

    async def _connect(self, of: Instance, url: SplitResult) -> Connection:
        """A new connection. A kept one stays with the process that was checked."""
        host, port = url.hostname or "", url.port or 80
        await self._check_listener(of, port)
        try:
            async with asyncio.timeout(CONNECT_S):
                return Connection(*await asyncio.open_connection(host, port, limit=READS_BYTES))
        except (OSError, TimeoutError):
            raise InstanceFailed("its server does not accept connections") from None

    def _take_kept(self, of: Instance) -> Connection | None:
        kept = self._kept.get((of.id, of.url), [])
        oldest_s = time.monotonic() - KEPT_FOR_S
        while kept:
            connection = kept.pop()
            if connection.is_open and connection.kept_at_s > oldest_s:
                connection.is_reused = True
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
        """Raises InstanceFailed. A result holds for CHECKED_FOR_S."""
        now_s = time.monotonic()
        if now_s < self._checked_until.get((port, of.account), 0.0):
            return
        # A directory service of the host may be slow to name the account.
        if await asyncio.to_thread(self._is_taken, port, of.account):
            raise InstanceFailed(f"a process of another account listens on its port {port}")
        if len(self._checked_until) >= MOST_CHECKED:
            self._checked_until.clear()
        self._checked_until[port, of.account] = now_s + CHECKED_FOR_S

    def _is_taken(self, port: int, account: str) -> bool:
        return is_taken(port, uid_of(account, self._run_as))


def _words(error: Exception) -> str:
    return "its server sent nothing in time" if isinstance(error, TimeoutError) else BROKE_OFF
