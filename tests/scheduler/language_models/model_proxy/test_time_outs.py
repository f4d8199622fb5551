"""Time-outs are told apart, a request runs once, and a server that keeps failing is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from scheduler.language_models.model_proxy.api import book
from tests.scheduler.language_models.model_proxy.endpoint import (
    ADA,
    CHAT,
    DONE,
    HELLO,
    Asked,
    ModelServer,
    chunked,
    endpoint,
    parse_events,
    token,
    whole,
)

ANSWER = whole(CHAT, "Content-Type: application/json")


def after(
    seconds: float, answer: bytes
) -> Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]:
    async def answers(_: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        writer.write(answer)

    return answers


async def crashes(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "SUSPECT_S", 0.05)


async def test_a_whole_answer_may_be_silent_for_longer_than_a_stream() -> None:
    server = ModelServer(after(1.5, ANSWER))
    async with endpoint(server) as stand:
        stand.change(stall_s=1.0)
        answer = await stand.ask()

    assert answer.status_code == 200
    assert len(server.asked) == 1


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_stream_that_stalls_ends_with_the_limit_and_is_not_sent_again(
    is_begun: bool,
) -> None:
    begun = chunked(token("a"), ends=False)

    async def stalls(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(begun if is_begun else b"")
        await asyncio.sleep(20)

    server = ModelServer(stalls)
    async with endpoint(server) as stand:
        stand.change(stall_s=1.0)
        answer = await stand.stream()

    assert "sent nothing for 1 s (stall_s)" in answer.text
    assert len(server.asked) == 1
    if is_begun:
        parse_events(answer.content)
    else:
        assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "false")


@pytest.mark.parametrize("reuses", [False, True])
async def test_a_request_that_a_server_broke_off_is_executed_once(reuses: bool) -> None:
    first = [ANSWER] if reuses else []
    servers = [ModelServer(*first, crashes), ModelServer(*first, crashes)]
    async with endpoint(*servers) as stand:
        if reuses:
            both = await asyncio.gather(stand.ask(), stand.ask())
            assert [answer.status_code for answer in both] == [200, 200]
        answer = await stand.ask()

    assert answer.status_code == 502
    assert "does not send it again" in answer.json()["error"]["message"]
    assert sum(len(server.asked) for server in servers) == (3 if reuses else 1)


async def test_a_server_that_closed_its_connection_meanwhile_gets_the_request_on_a_new_one() -> (
    None
):
    server = ModelServer(ANSWER, closes=True)
    async with endpoint(server) as stand:
        codes = [(await stand.ask()).status_code for _ in range(20)]

    assert codes == [200] * 20


async def test_attempts_to_connect_are_counted_not_instances() -> None:
    server = ModelServer(ANSWER)
    async with endpoint(server) as stand:
        server.port = 1
        stand.show()
        answer = await stand.ask()

    assert answer.status_code == 502
    text = answer.json()["error"]["message"]
    assert text.startswith("3 attempts to reach m failed: its server does not accept connections")


async def test_busy_servers_are_passed_on_with_the_time_to_come_back() -> None:
    head = ("Content-Type: application/json", "Retry-After: 3")
    server = ModelServer(whole(b'{"error": "loading"}', *head, status="503 Unavailable"))
    async with endpoint(server) as stand:
        answer = await stand.ask()

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
    assert len(server.asked) == 1


FAULT = whole(b"{}", status="500 Dead")


@pytest.mark.parametrize("fault", [FAULT, crashes, whole(b"", status="503 Busy"), b"SSH-2.0\r\n"])
async def test_a_server_that_fails_five_times_in_a_row_is_to_be_replaced(fault: object) -> None:
    async with endpoint(ModelServer(fault, closes=True)) as stand:  # type: ignore[arg-type]
        for _ in range(4):
            await stand.ask()
        assert stand.failing == {}
        await stand.ask()

        assert list(stand.failing) == [0]


@pytest.mark.parametrize("other", [ANSWER, whole(b"{}", status="400 Bad")])
async def test_only_an_answer_ends_the_row(other: bytes) -> None:
    server = ModelServer(*[FAULT] * 4, other, FAULT)
    async with endpoint(server) as stand:
        for _ in range(6):
            await stand.ask()

        assert bool(stand.failing) == (other is not ANSWER)


async def test_requests_that_no_server_of_this_kind_answers_are_no_faults() -> None:
    """llama.cpp answers so to embeddings, unless it is started for them."""
    async with endpoint(ModelServer(whole(b"{}", status="501 Not Implemented"))) as stand:
        for _ in range(6):
            await stand.ask("embeddings")

        assert stand.failing == {}


async def test_clients_that_leave_a_hanging_server_count_unless_they_leave_early() -> None:
    async def hangs(_: Asked, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(20)

    async def leaves(url: str, seconds: float) -> None:
        async with httpx.AsyncClient(verify=False) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(url, json=HELLO, headers=ADA, timeout=seconds)

    async with endpoint(ModelServer(hangs)) as stand:
        stand.change(stall_s=1.0)
        url = f"{stand.url}/chat/completions"
        await asyncio.gather(*(leaves(url, 0.5) for _ in range(6)))
        await asyncio.sleep(0.2)
        assert stand.failing == {}
        await asyncio.gather(*(leaves(url, 1.5) for _ in range(5)))
        await asyncio.sleep(0.2)

        assert "sent nothing for 1 s" in stand.failing[0]


async def test_a_stream_that_ends_well_needs_no_second_look() -> None:
    async with endpoint(ModelServer(chunked(token("a"), DONE))) as stand:
        answer = await stand.stream()

    assert answer.content == token("a") + DONE
