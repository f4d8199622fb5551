"""Requests between the event loop and the threads that answer them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.signals import request_finished, request_started
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import path

from gpucoord_site.http import handler as handlers
from gpucoord_site.http.handler import ThreadHandler, _session, client_of
from tests.pace import LONGEST_S

together = threading.Barrier(2, timeout=LONGEST_S)
goes_on, has_ended = threading.Event(), threading.Event()
closed: list[str] = []
started: list[int] = []


class Parts:
    """The parts of a stream, which note that they were closed."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"one, ", b"two"])

    def close(self) -> None:
        closed.append("stream")


def thread(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(threading.get_ident()))


def pair(request: HttpRequest) -> HttpResponse:
    together.wait()
    return HttpResponse("both")


def stream(request: HttpRequest) -> HttpResponseBase:
    return StreamingHttpResponse(Parts())


def slow(request: HttpRequest) -> HttpResponse:
    started.append(threading.get_ident())
    goes_on.wait(LONGEST_S)
    has_ended.set()
    return HttpResponse("late")


def broken(request: HttpRequest) -> HttpResponse:
    raise ValueError("a defect")


urlpatterns = [path(f"{view.__name__}/", view) for view in (thread, pair, stream, slow, broken)]


class Databases:
    """Notes which threads close their connections."""

    def __init__(self) -> None:
        self.closed_in: list[int] = []

    def close_all(self) -> None:
        self.closed_in.append(threading.get_ident())


@pytest.fixture
def databases(monkeypatch: pytest.MonkeyPatch) -> Databases:
    made = Databases()
    monkeypatch.setattr(handlers, "connections", made)
    return made


@pytest.fixture
def handler(settings: Any, databases: Databases) -> ThreadHandler:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
    return ThreadHandler()


async def get(handler: ThreadHandler, name: str, token: str = "") -> dict[str, Any]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": f"/{name}/", "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"authorization", token.encode())],
    }  # fmt: skip
    await asyncio.wait_for(handler(scope, receive, send), LONGEST_S)
    body = b"".join(message.get("body", b"") for message in sent)
    return {"status": sent[0]["status"], "body": body, "parts": len(sent) - 2}


async def test_one_thread_begins_answers_and_ends_a_request(handler: ThreadHandler) -> None:
    threads = []

    def note(**_: object) -> None:
        threads.append(str(threading.get_ident()))

    request_started.connect(note)
    request_finished.connect(note)
    try:
        answer = await get(handler, "thread")
    finally:
        request_started.disconnect(note)
        request_finished.disconnect(note)

    assert threads == [answer["body"].decode()] * 2
    assert threads[0] != str(threading.get_ident())


async def test_requests_do_not_wait_for_each_other(handler: ThreadHandler) -> None:
    answers = await asyncio.gather(get(handler, "pair"), get(handler, "pair"))

    assert [answer["body"] for answer in answers] == [b"both", b"both"]


async def test_a_few_threads_answer_and_keep_their_connections(
    handler: ThreadHandler, databases: Databases
) -> None:
    threads = {(await get(handler, "thread"))["body"] for _ in range(50)}

    assert len(threads) <= handlers.REGULAR
    assert databases.closed_in == []


async def test_further_threads_close_their_connections(
    handler: ThreadHandler, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "_free", 1)

    await asyncio.gather(get(handler, "pair"), get(handler, "pair"))

    assert len(databases.closed_in) == 1


async def test_a_stream_is_sent_and_then_closed(handler: ThreadHandler) -> None:
    closed.clear()

    answer = await get(handler, "stream")

    assert (answer["body"], answer["parts"]) == (b"one, two", 2)
    assert closed == ["stream"]


async def test_a_view_goes_on_when_its_client_has_gone(handler: ThreadHandler) -> None:
    goes_on.clear()
    has_ended.clear()
    request = asyncio.create_task(get(handler, "slow"))
    await asyncio.sleep(0.1)

    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    goes_on.set()

    assert await asyncio.to_thread(has_ended.wait, LONGEST_S)
    assert (await get(handler, "thread"))["status"] == 200


async def test_a_defect_is_500_and_the_next_request_is_answered(handler: ThreadHandler) -> None:
    statuses = [(await get(handler, name))["status"] for name in ("broken", "thread")]

    assert statuses == [500, 200]


async def test_a_client_does_not_keep_all_threads_busy(handler: ThreadHandler) -> None:
    goes_on.clear()
    started.clear()
    many = handlers.MOST_OF_A_CLIENT + 3
    requests = [asyncio.create_task(get(handler, "slow", "alice")) for _ in range(many)]
    try:
        other = await get(handler, "thread", "bob")
        began = len(started)
    finally:
        goes_on.set()
    answers = await asyncio.gather(*requests)

    assert other["status"] == 200
    assert began <= handlers.MOST_OF_A_CLIENT
    assert [answer["body"] for answer in answers] == [b"late"] * many
    assert len(started) == many


async def test_a_request_that_waits_is_dropped_when_its_client_has_gone(
    handler: ThreadHandler,
) -> None:
    goes_on.clear()
    started.clear()
    busy = [
        asyncio.create_task(get(handler, "slow", "alice")) for _ in range(handlers.MOST_OF_A_CLIENT)
    ]
    waiting = asyncio.create_task(get(handler, "slow", "alice"))
    await asyncio.sleep(0.1)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    goes_on.set()
    await asyncio.gather(*busy)
    await get(handler, "thread", "alice")

    assert len(started) == len(busy)
    await asyncio.sleep(0)
    assert handler._turns._places == {}


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ([(b"authorization", b"Bearer a")], (b"Bearer a",)),
        ([(b"cookie", b"timezone=UTC; sessionid=s1; x=y")], (b"s1",)),
        ([(b"cookie", b"othersessionid=s1")], ("10.0.0.7", "/login/")),
        ([], ("10.0.0.7", "/login/")),
    ],
)
def test_a_client_is_known_by_its_token_its_session_or_its_address(
    settings: Any, headers: list[tuple[bytes, bytes]], client: tuple[object, ...]
) -> None:
    settings.SESSION_COOKIE_NAME = "sessionid"
    _session.cache_clear()
    scope = {"client": ("10.0.0.7", 4711), "path": "/login/", "headers": headers}

    assert client_of(scope) == client
    _session.cache_clear()
