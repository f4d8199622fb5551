"""Requests to an instance: connections are kept, and every way to fail is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from scheduler.facts.language_models import Instance
from scheduler.language_models.model_proxy import senders
from scheduler.language_models.model_proxy.senders import InstanceFailed, Upstream

Answers = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Gives the answers one after another; `heads`: the requests of each connection."""

    def __init__(self, *answers: bytes, closes: bool = False) -> None:
        self.answers, self.closes = list(answers), closes
        self.heads: list[list[bytes]] = []
        self.left = asyncio.Event()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads: list[bytes] = []
        self.heads.append(heads)
        try:
            while self.answers:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(2)
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.closes:
                    return
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.left.set()
            writer.close()


@asynccontextmanager
async def instance(server: Server) -> AsyncIterator[Instance]:
    async with await asyncio.start_server(server.connected, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        yield Instance(id=1, url=f"http://127.0.0.1:{port}/v1")


async def ask(upstream: Upstream, of: Instance, stall_s: float = 20) -> bytes:
    async with upstream.post(of, "completions", b"{}", stall_s) as reply:
        return b"".join([piece async for piece in reply.pieces()])


async def test_the_next_request_uses_the_same_connection() -> None:
    server = Server(WHOLE, CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", WHOLE)
    async with instance(server) as one, Upstream() as upstream:
        answers = [await ask(upstream, one) for _ in range(3)]

    assert answers == [b"hello"] * 3
    assert [len(heads) for heads in server.heads] == [3]
    assert server.heads[0][0].startswith(b"POST /v1/completions HTTP/1.1\r\n")


async def test_the_head_of_the_answer_is_given() -> None:
    async with (
        instance(Server(WHOLE)) as one,
        Upstream() as upstream,
        upstream.post(one, "completions", b"{}", 20) as reply,
    ):
        about = (reply.status, reply.content_type, reply.length)

    assert about == (200, "text/x", "5")


async def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    server = Server(WHOLE, WHOLE, closes=True)
    async with instance(server) as one, Upstream() as upstream:
        first = await ask(upstream, one)
        # The end of the connection may not have arrived yet, so both ways are right.
        second = await ask(upstream, one)

    assert (first, second) == (b"hello", b"hello")
    assert len(server.heads) == 2


async def test_an_old_connection_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "KEPT_FOR_S", 0.0)
    server = Server(WHOLE, WHOLE)
    async with instance(server) as one, Upstream() as upstream:
        await ask(upstream, one)
        await ask(upstream, one)

    assert len(server.heads) == 2


async def test_no_more_than_the_limit_of_idle_connections_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(senders, "MOST_KEPT", 2)
    server = Server(*[WHOLE] * 8)
    async with instance(server) as one, Upstream() as upstream:
        await asyncio.gather(*(ask(upstream, one) for _ in range(8)))
        assert sum(map(len, upstream._kept.values())) <= 2


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "its server broke the connection off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhel", "broke the connection off"),
        (CHUNKED + b"5\r\nhel", "broke the connection off"),
        (CHUNKED + b"zz\r\nhello\r\n", "broke the connection off"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "broke the connection off"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "broke the connection off"),
    ],
)
async def test_a_broken_answer_is_a_failure_of_the_instance(answer: bytes, problem: str) -> None:
    async with instance(Server(answer, closes=True)) as one, Upstream() as upstream:
        with pytest.raises(InstanceFailed, match=problem):
            await ask(upstream, one)


async def test_a_server_that_sends_nothing_has_failed() -> None:
    async with instance(Server(CHUNKED)) as one, Upstream() as upstream:
        with pytest.raises(InstanceFailed, match="nothing in time"):
            await ask(upstream, one, stall_s=0.2)


async def test_a_port_without_a_server_has_failed() -> None:
    async with instance(Server()) as one:
        pass
    async with Upstream() as upstream:
        with pytest.raises(InstanceFailed, match="does not accept connections"):
            await ask(upstream, one)


async def test_leaving_in_the_middle_ends_the_connection() -> None:
    server = Server(CHUNKED + b"5\r\nhello\r\n")
    async with instance(server) as one, Upstream() as upstream:
        async with upstream.post(one, "completions", b"{}", 20) as reply:
            await anext(reply.pieces())
        async with asyncio.timeout(20):
            await server.left.wait()


async def test_a_hint_before_the_answer_is_skipped() -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
    async with instance(Server(hint + WHOLE)) as one, Upstream() as upstream:
        assert await ask(upstream, one) == b"hello"
