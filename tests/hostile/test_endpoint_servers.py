"""A model's server that misbehaves: its client gets a true answer, and the endpoint goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import httpx
import pytest

from scheduler.language_models.model_proxy.api import book, exchange
from tests.scheduler.language_models.model_proxy.endpoint import (
    CHAT,
    DONE,
    Asked,
    ModelServer,
    chunked,
    endpoint,
    parse_events,
    token,
    whole,
)

pytestmark = pytest.mark.hostile
JSON = "Content-Type: application/json"
GOOD = whole(CHAT, JSON)
Answers = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


def endless(first: bytes, again: bytes) -> Answers:
    """Sends the second text until the endpoint leaves."""

    async def answers(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(again * 1000)
            await writer.drain()
            await asyncio.sleep(0)

    return answers


async def hangs(_: Asked, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def resets(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def trickles(_: Asked, writer: asyncio.StreamWriter) -> None:
    """One byte of a head at a time: each is in time, all together are not."""
    for byte in b"HTTP/1.1 200 OK\r\nContent-Type: " + b"x" * 1000:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.1)


HEAD = b"HTTP/1.1 200 OK\r\n"
EVENTS = HEAD + b"Content-Type: text/event-stream\r\n"


@dataclass(frozen=True, slots=True)
class Case:
    """status: of a request that is not streamed; None: it may begin, and breaks off."""

    name: str
    answer: bytes | Answers
    status: int | None = 502


CASES = [
    Case("closes at once", b""),
    Case("resets the connection", resets),
    Case("speaks another protocol", b"SSH-2.0-OpenSSH_9\r\n\r\n"),
    Case("speaks HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Case("hints without end", endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")),
    Case("continues without end", endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n")),
    Case("one header without end", endless(HEAD + b"X: ", b"y" * 4096)),
    Case("headers without end", endless(HEAD, b"X-A: y\r\n" * 100)),
    Case("two lengths", HEAD + b"Content-Length: 2\r\nContent-Length: 9\r\n\r\n{}"),
    Case("a negative length", HEAD + b"Content-Length: -2\r\n\r\n{}"),
    Case("a length that is no number", HEAD + b"Content-Length: 0x2\r\n\r\n{}"),
    Case("an unknown transfer coding", HEAD + b"Transfer-Encoding: gzip\r\n\r\n{}"),
    Case("a space in a header's name", HEAD + b"X Y: 1\r\nContent-Length: 2\r\n\r\n{}"),
    Case("a status that is no number", b"HTTP/1.1 2x0 OK\r\nContent-Length: 2\r\n\r\n{}"),
    Case("hangs", hangs, 504),
    Case("trickles its head", trickles, 504),
    Case("a length that is too large", HEAD + b"Content-Length: 99\r\n\r\n{}", None),
    Case("chunks that break off", HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", None),
    Case("a chunk's length that is no number",
         HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n", 502),
    Case("trailers without end",
         endless(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n"), None),
    Case("an answer without a request's end", GOOD + GOOD, 200),
    Case("an error in HTML", whole(b"<h1>", "Content-Type: text/html", status="500 Dead"), 500),
    Case("a status without a meaning", whole(b"{}", JSON, status="799 What")),
    Case("no content with a length", b"HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\n", 204),
    Case("redirects to another host", whole(b"", "Location: http://evil/", status="308 R")),
    Case("headers that split", whole(b"{}", JSON, "X-A: 1\n Set-Cookie: s=1"), 200),
]  # fmt: skip
NAMES = [case.name for case in CASES]


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "SUSPECT_S", 0.05)
    monkeypatch.setattr(exchange, "FIRST_COMMENT_S", 0.05)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
async def test_an_answer_of_a_misbehaving_server_is_a_true_one(case: Case) -> None:
    server = ModelServer(case.answer, closes=True)
    async with endpoint(server) as stand:
        stand.change(stall_s=1.0, answer_s=10.0)
        if case.status == 504:
            # Its limit is that of a stream here, which is shorter.
            answer = await stand.stream()
            assert answer.status_code == 504
        elif case.status is None:
            # Bytes that came together with the fault are not passed on.
            with suppress(httpx.RemoteProtocolError):
                assert (await stand.ask()).status_code == 502
        else:
            answer = await stand.ask()
            assert answer.status_code == case.status
            assert "set-cookie" not in answer.headers
        executed = len(server.asked)

        server.answers = [GOOD]
        stand.show()
        after = await stand.ask()

    assert executed == 1
    assert after.status_code == 200


@pytest.mark.parametrize("case", CASES, ids=NAMES)
async def test_a_stream_that_began_cold_is_well_formed_whatever_comes(case: Case) -> None:
    if case.name == "no content with a length":
        pytest.skip("an empty stream is no error")
    async with endpoint(ModelServer(case.answer, closes=True)) as stand:
        stand.change(stall_s=1.0, answer_s=10.0)
        events = parse_events(await stand.cold())

    assert '"error"' in events[-1][1]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_a_stream_in_small_pieces_arrives_as_it_was_sent(size: int) -> None:
    whole_stream = (
        'data: {"x": "é漢😀"}\r\n\r\nid: 4\rdata: 2\r\r: c\n\n'.encode() + token("a") + DONE
    )
    pieces = [whole_stream[at : at + size] for at in range(0, len(whole_stream), size)]
    async with endpoint(ModelServer(chunked(*pieces))) as stand:
        answer = await stand.stream()

    assert answer.content == whole_stream


async def test_a_bomb_in_gzip_costs_little_memory_and_no_other_request_waits_for_it() -> None:
    import gzip

    bomb = gzip.compress(b"data: " + bytes(50_000_000) + b"\n\n")
    head = ("Content-Type: text/event-stream", "Content-Encoding: gzip")
    server = ModelServer(whole(bomb, *head), GOOD)
    async with endpoint(server) as stand:
        content = await stand.cold()
        began_s = time.monotonic()
        assert (await stand.ask()).status_code == 200

    assert content.endswith(b"\n\n")
    assert time.monotonic() - began_s < 10


async def test_a_server_that_does_not_read_a_form_holds_it_up_until_the_longest_answer() -> None:
    class Deaf(ModelServer):
        async def connected(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            # Its buffer fills, and the connection with it.
            await asyncio.sleep(60)

    async with endpoint(Deaf(b"")) as stand:
        stand.change(stall_s=1.0, answer_s=10.0)
        answer = await stand.ask(
            "audio/transcriptions", files={"file": ("a", bytes(20_000_000))}, data={"model": "m"}
        )

    assert answer.status_code == 504
