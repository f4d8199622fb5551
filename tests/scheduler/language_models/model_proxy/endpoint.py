"""The endpoint in the test's own event loop, on a real port, before servers that a test scripts."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn

from gpucoord_site.service.model_endpoint import LimitedProtocol
from scheduler.facts.language_models import Instance, ModelNames, Service
from scheduler.language_models.model_proxy.api import app
from scheduler.language_models.model_proxy.api.book import Board
from scheduler.language_models.model_proxy.policy import Caller, Limits
from scheduler.language_models.model_proxy.rows import Situation
from scheduler.language_models.prompts.policy import PromptPolicy
from tests.pace import LONGEST_S

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
ADA = {"Authorization": "Bearer ada"}


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer with its length."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*pieces: bytes, kind: str = "text/event-stream", ends: bool = True) -> bytes:
    """An answer in chunks; ends = False: it breaks off."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head.encode() + body + (b"0\r\n\r\n" if ends else b"")


CHAT = (
    b'{"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index":'
    b' 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}]}'
)


def token(text: str) -> bytes:
    """An event of a stream of chat completions."""
    return (
        b'data: {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m",'
        b' "choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % text.encode()
    )


DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the server got it. Names of headers are in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes


# Answers one request by writing to the client.
Answers = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class ModelServer:
    """Answers each request with the next answer, and the last one again and again.

    An answer is bytes, or a coroutine that writes. closes: after each answer.
    """

    def __init__(self, *answers: bytes | Answers, closes: bool = False) -> None:
        self.answers, self.closes = list(answers), closes
        self.asked: list[Asked] = []
        self.port = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(self.connected(reader, writer))
        self._connections.add(connection)
        try:
            await asyncio.wait([connection])
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def end(self) -> None:
        """End answers that would go on after the test."""
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        # Their sockets are closed by the next turns of the loop.
        await asyncio.sleep(0.01)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.asked.append(await _read(reader))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    await answer(self.asked[-1], writer)
                await writer.drain()
                if self.closes:
                    break
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines[1:])
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(lines[0], headers, body)


class FakeBook:
    """Knows the users ada and bob, and reader, whose token lacks a scope; never reads rows."""

    def __init__(self, host: str) -> None:
        self.host, self.board = host, Board()
        self.later: Callable[[], None] = lambda: None
        self.looks = 0

    async def sync(self) -> None:
        pass

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.board.update(self.board.situation)

    async def look_again(self) -> None:
        self.looks += 1
        self.later()

    async def caller(self, token: str, address: str, path: str) -> Caller | None:
        users = {"ada": 1, "bob": 2, "reader": 3}
        if token not in users:
            return None
        return Caller(user_id=users[token], name=token, may_submit=token != "reader")

    async def caller_of_host(self, user_id: int) -> Caller | None:
        name = {1: "ada", 2: "bob"}[user_id]
        return Caller(user_id=user_id, name=name, is_passed_on=True)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class Endpoint:
    """policy: of the next requests. aliases: of the model m."""

    board: Board
    book: FakeBook
    port: int
    servers: list[ModelServer]
    policy: PromptPolicy = field(default_factory=PromptPolicy)
    aliases: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def show(self, *, ready: bool = True, names: tuple[str, ...] = ("m",)) -> None:
        """Let the endpoint know its models; each has all servers as instances."""
        services = tuple(
            Service(id=at, name=name, concurrency=50, max_instances=9, instances=tuple(
                Instance(id=at * 100 + number, url=f"http://127.0.0.1:{server.port}/v1",
                         is_ready=ready, is_booting=not ready, ready_in_s=85)
                for number, server in enumerate(self.servers)
            ))
            for at, name in enumerate(names)
        )  # fmt: skip
        aliases = {name: self.aliases if name == "m" else () for name in names}
        made = dict.fromkeys(names, 1.0)
        self.board.update(
            Situation(services=services, names=ModelNames(aliases), made=made, policy=self.policy)
        )

    def show_elsewhere(self, *others: Endpoint) -> None:
        """Let the endpoint know that only these other hosts run m."""
        service = Service(
            id=1, name="m", elsewhere="m runs on west.", endpoints=tuple(
                Instance(id=0, url=other.url, host=other.book.host) for other in others
            ),
        )  # fmt: skip
        self.board.update(
            Situation(services=(service,), names=ModelNames({"m": ()}), made={"m": 1.0})
        )

    def change(self, **policy: float) -> None:
        self.policy = PromptPolicy(**policy)  # type: ignore[arg-type]
        self.show()

    async def ask(self, path: str = "chat/completions", **more: Any) -> httpx.Response:
        given: dict[str, Any] = {"json": HELLO, "headers": ADA, "timeout": LONGEST_S} | more
        if "content" in given or "files" in given:
            del given["json"]
        return await self.request("POST", path, **given)

    async def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        async with httpx.AsyncClient(verify=False) as client:
            return await client.request(method, f"{self.url}/{path}", **given)

    async def cold(self, path: str = "chat/completions") -> bytes:
        """The bytes of a stream that begins while the model boots."""
        self.show(ready=False)
        body = HELLO | {"stream": True}
        async with (
            httpx.AsyncClient(verify=False, timeout=LONGEST_S) as client,
            client.stream("POST", f"{self.url}/{path}", json=body, headers=ADA) as answer,
        ):
            pieces = answer.aiter_bytes()
            content = await anext(pieces)
            self.show()
            content += b"".join([piece async for piece in pieces])
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert content.startswith(b": model boots")
        return content

    async def stream(self, **more: Any) -> httpx.Response:
        return await self.ask(json=HELLO | {"stream": True}, **more)

    async def raw(self, request: bytes, *, until_end: bool = True) -> bytes:
        """The bytes that a client gets for these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            async with asyncio.timeout(LONGEST_S):
                if until_end:
                    return await reader.read()
                return await reader.read(65536)
        finally:
            writer.close()

    @property
    def busy(self) -> bool:
        """Whether an instance has a request."""
        return any(self.board._router.in_flight().values())

    async def is_quiet(self) -> None:
        """Returns once no instance has a request."""
        async with asyncio.timeout(LONGEST_S):
            while self.busy:  # noqa: ASYNC110 - the board has no event for it
                await asyncio.sleep(0.01)

    @property
    def failing(self) -> dict[int, str]:
        return self.board.take_failing()


@asynccontextmanager
async def endpoint(
    *servers: ModelServer, limits: Limits | None = None, host: str = "here"
) -> AsyncIterator[Endpoint]:
    made: list[FakeBook] = []

    def book(host: str, _address: str) -> FakeBook:
        made.append(FakeBook(host))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "Book", book)
        application = app.ModelEndpoint(host, limits=limits or Limits())
        config = uvicorn.Config(
            application, http=LimitedProtocol, log_config=None, lifespan="on", ws="none",
            server_header=False, access_log=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        serving = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", 0))
        task = asyncio.create_task(serving.serve(sockets=[listening]))
        started = [await asyncio.start_server(each.serve, "127.0.0.1", 0) for each in servers]
        for each, server in zip(servers, started, strict=True):
            each.port = server.sockets[0].getsockname()[1]
        async with httpx.AsyncClient(verify=False) as client:
            port = listening.getsockname()[1]
            await client.get(f"http://127.0.0.1:{port}/healthz", timeout=LONGEST_S)
        stand = Endpoint(made[0].board, made[0], listening.getsockname()[1], list(servers))
        stand.show()
        try:
            yield stand
        finally:
            serving.should_exit = True
            await task
            for server in started:
                server.close()
            for each in servers:
                await each.end()


_LINE = re.compile("\r\n|\n|\r")


def parse_events(body: bytes) -> list[tuple[str, str]]:
    """Types and data of the events of a stream, by the HTML standard, section 9.2.6.

    Raises ValueError for bytes that the grammar of section 9.2.5 does not allow: a line that is
    neither empty, a comment, nor one of the four fields.
    """
    text = body.decode("utf-8")
    lines = _LINE.split(text.removeprefix("\ufeff"))
    events, data, kind = [], [], "message"
    for line in lines[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                events.append((kind, "\n".join(data)))
            data, kind = [], "message"
        elif line.startswith(":"):
            continue
        elif name == "data":
            data.append(value)
        elif name == "event":
            kind = value or "message"
        elif name not in ("id", "retry"):
            raise ValueError(f"no line of a stream of events: {line!r}")
    if lines[-1] or data:
        raise ValueError(f"the stream ends within an event: {lines[-1]!r} {data!r}")
    return events
