"""Clients of the endpoint that misbehave: smuggled and slow requests, answers of other users."""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest

from gpucoord_site.service import model_endpoint
from scheduler.language_models.model_proxy.policy import Limits
from tests.scheduler.language_models.model_proxy.endpoint import (
    ADA,
    HELLO,
    Asked,
    Endpoint,
    ModelServer,
    endpoint,
    whole,
)

pytestmark = pytest.mark.hostile
JSON = "Content-Type: application/json"
BODY = json.dumps(HELLO).encode()
HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bob\r\n\r\n"


def head(*lines: str, path: str = "/v1/chat/completions") -> bytes:
    first = (f"POST {path} HTTP/1.1", "Host: x", "Authorization: Bearer ada", *lines, "", "")
    return "\r\n".join(first).encode()


def statuses(got: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3})", got)]


CHUNKED_BODY = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
SMUGGLED = {
    "length and chunks": (
        head(f"Content-Length: {len(CHUNKED_BODY) + len(HIDDEN)}", "Transfer-Encoding: chunked")
        + CHUNKED_BODY + HIDDEN
    ),
    "chunks and length": (
        head("Transfer-Encoding: chunked", "Content-Length: 4") + CHUNKED_BODY + HIDDEN
    ),
    "two lengths": head(f"Content-Length: {len(BODY)}", "Content-Length: 0") + BODY + HIDDEN,
    "a list of lengths": head(f"Content-Length: {len(BODY)}, 0") + BODY + HIDDEN,
    "a signed length": head(f"Content-Length: +{len(BODY)}") + BODY + HIDDEN,
    "a disguised coding": head("Transfer-Encoding: xchunked") + CHUNKED_BODY + HIDDEN,
    "a coding with a tab": (
        head(f"Content-Length: {len(BODY)}", "Transfer-Encoding:\tchunked") + BODY + HIDDEN
    ),
    "two codings": head("Transfer-Encoding: gzip, chunked") + CHUNKED_BODY + HIDDEN,
    "a space before the colon": head(f"Content-Length : {len(BODY)}") + BODY + HIDDEN,
    "a chunk with a wrong end": (
        head("Transfer-Encoding: chunked") + b"%x\r\n%sXX0\r\n\r\n" % (len(BODY), BODY) + HIDDEN
    ),
    "a chunk with a signed length": (
        head("Transfer-Encoding: chunked") + b"+%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY) + HIDDEN
    ),
    "a null in a header": head("X-A: \x00", f"Content-Length: {len(BODY)}") + BODY + HIDDEN,
    "a carriage return in a header": (
        head("X-A: 1\rContent-Length: 0", f"Content-Length: {len(BODY)}") + BODY + HIDDEN
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_request_with_two_ends_is_refused_and_nothing_after_it_is_read(name: str) -> None:
    server = ModelServer(whole(b"{}", JSON))
    async with endpoint(server) as stand:
        got = await stand.raw(SMUGGLED[name])

    assert statuses(got) == [400]
    assert server.asked == []


@pytest.mark.parametrize(
    "request_",
    [
        # A folded line is one value (RFC 9112, section 5.2).
        head("X-A: 1\r\n Content-Length: 0", f"Content-Length: {len(BODY)}", "Connection: close"),
        # A lone LF may end a line (section 2.2).
        head(f"Content-Length: {len(BODY)}", "Connection: close").replace(b"\r\n", b"\n"),
        head(*[f"Content-Length: {len(BODY)}"] * 2, "Connection: close"),
    ],
    ids=["folded", "bare line feeds", "the same length twice"],
)
async def test_what_the_standard_allows_is_one_request_with_one_end(request_: bytes) -> None:
    server = ModelServer(whole(b"{}", JSON))
    async with endpoint(server) as stand:
        got = await stand.raw(request_ + BODY)

    assert statuses(got) == [200]
    (asked,) = server.asked
    assert asked.body == BODY
    assert "\n" not in "".join(asked.headers.values())


async def test_what_follows_a_request_is_the_next_request_of_its_own_token() -> None:
    server = ModelServer(whole(b"{}", JSON))
    smuggled = head("Content-Length: 2", path="/v1/models") + HIDDEN.replace(b"bob", b"eve")
    async with endpoint(server) as stand:
        got = await stand.raw(smuggled.replace(b"GET", b"  GET", 1) + b"\r\n", until_end=False)

    assert 200 not in statuses(got)


@pytest.mark.parametrize("line", ["X: " + "y" * 100_000, "\r\n".join(["X: y"] * 20_000)])
async def test_headers_without_end_are_refused(line: str) -> None:
    async with endpoint(ModelServer(whole(b"{}"))) as stand:
        try:
            got = await stand.raw(head(line))
        except ConnectionResetError:
            got = b""

    assert statuses(got) in ([400], [431], [])


async def test_slow_heads_and_slow_bodies_end_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_endpoint, "HEAD_S", 1.0)
    limits = Limits(body_s=1.0, upload_s=1.0)
    form = head("Content-Type: multipart/form-data; boundary=b", "Content-Length: 100",
                path="/v1/audio/transcriptions")  # fmt: skip
    async with endpoint(ModelServer(whole(b"{}", JSON)), limits=limits) as stand:
        slow = [
            asyncio.create_task(stand.raw(begun))
            for begun in (head()[:-2], head("Content-Length: 50") + b"{", form + b"--b\r\n")
        ]
        other = await stand.ask()
        ends = await asyncio.gather(*(_until(stand, task) for task in slow))

    assert other.status_code == 200
    assert ends == [[], [408], [408]]


async def _until(stand: Endpoint, task: asyncio.Task[bytes]) -> list[int]:
    """A refused connection may wait for the rest of its body."""
    try:
        async with asyncio.timeout(20):
            return statuses(await task)
    except ConnectionResetError:
        return []


async def test_answers_of_many_users_never_mix() -> None:
    """Each gets what it asked for, on kept connections, beside clients that leave."""

    async def echoes(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        writer.write(whole(asked.body, JSON))

    server = ModelServer(echoes)
    async with endpoint(server) as stand, httpx.AsyncClient(verify=False, timeout=30) as client:

        async def ask(number: int) -> bool:
            user = ("ada", "bob")[number % 2]
            sent = HELLO | {"secret": f"{user}-{number}"}
            headers = {"Authorization": f"Bearer {user}"}
            if number % 7 == 0:
                task = client.post(
                    f"{stand.url}/completions", json=sent, headers=headers, timeout=0.005
                )
                with pytest.raises(httpx.TimeoutException):
                    await task
                return True
            answer = await client.post(f"{stand.url}/completions", json=sent, headers=headers)
            return bool(answer.json() == sent)

        results = await asyncio.gather(*(ask(number) for number in range(200)))

    assert all(results)
    assert not any("authorization" in asked.headers for asked in server.asked)


@pytest.mark.parametrize("path", ["chat/completions", "audio/transcriptions", "messages"])
async def test_a_token_without_the_scope_or_without_a_user_reaches_no_server(path: str) -> None:
    server = ModelServer(whole(b"{}", JSON))
    async with endpoint(server) as stand:
        codes = [
            (await stand.ask(path, headers=headers)).status_code
            for headers in (
                {"Authorization": "Bearer reader"},
                {"x-api-key": "reader"},
                {},
                {"Authorization": "Bearer"},
                {"Authorization": "Basic YWRhOg=="},
                {"Authorization": "Bearer eve"},
                {"Cookie": "sessionid=ada"},
            )
        ]

    assert codes == [403, 403, 401, 401, 401, 401, 401]
    assert server.asked == []


async def test_a_client_that_reads_slowly_slows_its_own_server_down_alone() -> None:
    sent = 0

    async def floods(_: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\n\r\n")
        for _number in range(2000):
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000
        writer.close()

    server = ModelServer(floods)
    async with endpoint(server) as stand:
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port, limit=1024)
        writer.write(head(f"Content-Length: {len(BODY)}") + BODY)
        await reader.readexactly(100)
        await asyncio.sleep(1)
        held = sent
        server.answers.append(whole(b"{}", JSON))
        server.answers.pop(0)
        other = await stand.ask()
        writer.transport.abort()

    assert held < 60_000_000
    assert other.status_code == 200


@pytest.mark.parametrize(
    "path",
    ["../../admin", "%2e%2e/admin", "chat/completions/../../x", "//chat/completions", "models/%00"],
)
async def test_only_listed_addresses_reach_a_server(path: str) -> None:
    server = ModelServer(whole(b"{}", JSON))
    async with endpoint(server) as stand:
        got = await stand.raw(
            head(f"Content-Length: {len(BODY)}", "Connection: close", path=f"/v1/{path}") + BODY
        )

    assert statuses(got)[0] in (200, 400, 404, 405)
    assert all(asked.line == "POST /v1/chat/completions HTTP/1.1" for asked in server.asked)


async def test_line_ends_in_a_query_reach_no_server_as_lines() -> None:
    server = ModelServer(whole(b"{}", JSON))
    async with endpoint(server) as stand:
        await stand.ask("chat/completions?a=%0d%0aX-Evil:%201", headers=ADA)

    (asked,) = server.asked
    assert "x-evil" not in asked.headers
