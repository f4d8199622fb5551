"""Connections to the endpoint for models: slow and many ones are ended before any login."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from gpucoord_site.service import model_endpoint
from scheduler.language_models.model_proxy.api.app import ModelEndpoint
from scheduler.language_models.model_proxy.policy import Caller, Limits, Refused
from tests.pace import LONGEST_S

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(model_endpoint, "HEAD_S", 0.5)
    monkeypatch.setattr(model_endpoint, "MOST_CONNECTIONS", 5)
    protocol = model_endpoint.LimitedProtocol
    config = uvicorn.Config(application, http=protocol, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(LONGEST_S)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), LONGEST_S)


def is_ended(connection: socket.socket) -> bool:
    """Whether the server ends the connection, sooner or later."""
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("begun", [b"", HEAD], ids=["silent", "half a head"])
def test_a_connection_whose_headers_do_not_come_is_ended(port: int, begun: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(begun)

        assert is_ended(connection)


def test_a_second_request_that_stops_in_its_headers_is_ended(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 204")
        connection.sendall(HEAD)

        assert is_ended(connection)


def test_a_connection_that_is_one_too_many_is_ended_and_the_others_go_on(port: int) -> None:
    connections = [connect(port) for _ in range(5)]
    for connection in connections:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 204")

    with connect(port) as more:
        assert is_ended(more)

    connections[0].sendall(HEAD + b"\r\n")
    assert connections[0].recv(1000).startswith(b"HTTP/1.1 204")
    for connection in connections:
        connection.close()


class Sent:
    """Receives the pieces of a body; then nothing more comes."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def __call__(self) -> dict[str, object]:
        if not self._pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._pieces.pop(0), "more_body": True}


class Endpoint(ModelEndpoint):
    async def _caller(self, *_: object) -> Caller:
        return Caller(user_id=1, name="alice")

    async def post(self, receive: Sent) -> Refused:
        with pytest.raises(Refused) as refused:
            await self._post("chat/completions", {"headers": []}, receive, None)  # type: ignore[arg-type]
        return refused.value


async def test_a_body_that_does_not_come_is_refused_in_time() -> None:
    endpoint = Endpoint("here", limits=Limits(body_s=0.1))

    assert (await endpoint.post(Sent(b"{"))).status == 408


async def test_the_memory_of_bodies_that_arrive_is_counted_and_given_back() -> None:
    endpoint = Endpoint("here", limits=Limits(body=100, all_bodies=150, body_s=0.1))

    answers = await asyncio.gather(endpoint.post(Sent(b"x" * 90)), endpoint.post(Sent(b"x" * 90)))

    assert sorted(answer.status for answer in answers) == [408, 503]
    assert (await endpoint.post(Sent(b"x" * 90))).status == 408
