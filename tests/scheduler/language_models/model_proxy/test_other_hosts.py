"""Requests for a model that only another host runs: its endpoint answers them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from scheduler.language_models.model_proxy.api.exchange import SCHEME, Tickets, ticket
from tests.pace import LONGEST_S
from tests.scheduler.language_models.model_proxy.endpoint import (
    ADA,
    CHAT,
    DONE,
    HELLO,
    Asked,
    Endpoint,
    ModelServer,
    chunked,
    endpoint,
    token,
    whole,
)

CHAT_PATH = "chat/completions"


@asynccontextmanager
async def two_hosts(server: ModelServer) -> AsyncIterator[tuple[Endpoint, Endpoint]]:
    """The endpoint here, and that of the host west, which has the model."""
    async with endpoint(server, host="west") as west, endpoint() as here:
        here.show_elsewhere(west)
        yield here, west


async def test_a_request_is_passed_on_and_counts_on_the_host_of_the_model() -> None:
    server = ModelServer(whole(CHAT, "Content-Type: application/json", "X-Model: 7"))

    async with two_hosts(server) as (here, west):
        answer = await here.ask(headers=ADA | {"X-Gpucoord-Priority": "5"})

    assert (answer.status_code, answer.content) == (200, CHAT)
    assert answer.headers["x-model"] == "7"
    assert "authorization" not in server.asked[0].headers
    assert [use.owner for use in west.board.take_changes()[1]] == ["ada"]
    assert here.board.take_changes()[1] == []
    assert here.board.came_since("ada", 0) == 0


async def test_a_stream_is_passed_on_as_it_comes() -> None:
    stream = [token("hel"), token("lo"), DONE]

    async with two_hosts(ModelServer(chunked(*stream))) as (here, _):
        answer = await here.stream()

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.content == b"".join(stream)


async def test_a_stream_says_why_it_waits_and_ends_there_when_its_client_leaves() -> None:
    async def hang(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(token("hi"), ends=False))
        await writer.drain()
        await asyncio.sleep(LONGEST_S)

    async with two_hosts(ModelServer(hang)) as (here, west):
        west.show(ready=False)
        body = HELLO | {"stream": True}
        async with (
            httpx.AsyncClient(verify=False, timeout=LONGEST_S) as client,
            client.stream("POST", f"{here.url}/{CHAT_PATH}", json=body, headers=ADA) as answer,
        ):
            pieces = answer.aiter_bytes()
            assert (await anext(pieces)).startswith(b": model boots")
            west.show()
            assert await anext(pieces) == token("hi")
            assert west.busy
        await west.is_quiet()


async def test_an_error_of_the_other_host_is_passed_on() -> None:
    error = b'{"error": {"message": "too long"}}'
    server = ModelServer(whole(error, "Content-Type: application/json", status="400 Bad Request"))

    async with two_hosts(server) as (here, _):
        answer = await here.ask()

    assert (answer.status_code, answer.content) == (400, error)


async def test_a_host_whose_endpoint_cannot_be_reached_is_named() -> None:
    async with endpoint(ModelServer(b""), host="west") as west:
        pass
    async with endpoint() as here:
        here.show_elsewhere(west)
        answer = await here.ask()

    assert answer.status_code == 503
    assert "m runs on west, whose endpoint can't be reached" in answer.text


async def test_the_other_host_does_not_pass_it_on_again() -> None:
    async with two_hosts(ModelServer(b"")) as (here, west):
        west.show_elsewhere(here)
        answer = await here.ask()

    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "model_on_other_host")


@pytest.mark.parametrize("host", ["west", "north"])
async def test_a_ticket_is_valid_for_one_host_and_once(host: str) -> None:
    server = ModelServer(whole(CHAT, "Content-Type: application/json"))

    async with endpoint(server, host="west") as west:
        headers = {"Authorization": f"{SCHEME} {ticket(host, 1, CHAT_PATH)}"}
        answers = [await west.ask(headers=headers) for _ in range(2)]

    first = 200 if host == "west" else 401
    assert [answer.status_code for answer in answers] == [first, 401]


def test_a_ticket_names_its_path_and_cannot_be_guessed() -> None:
    tickets, made = Tickets("west"), ticket("west", 7, CHAT_PATH)

    assert tickets.user_of(made, "embeddings") is None
    assert tickets.user_of(f"{made}x", CHAT_PATH) is None
    assert tickets.user_of(made, CHAT_PATH) == 7


def test_a_used_ticket_stays_used_when_the_endpoint_starts_again() -> None:
    before, made = Tickets("west"), ticket("west", 7, CHAT_PATH)
    assert before.user_of(made, CHAT_PATH) == 7

    assert Tickets("west").user_of(made, CHAT_PATH) is None
