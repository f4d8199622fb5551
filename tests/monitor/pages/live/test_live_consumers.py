from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.asgi import application
from monitor.gpus.rows.snapshot import Bookings
from monitor.pages import frames
from monitor.pages import hub as live_consumers
from monitor.pages.hub import FLOODING, MALFORMED, TOO_MANY_SOCKETS, Hub, OpenSockets
from tests.builders import NOW, snapshot
from tests.monitor.pages.live.test_hub import Server
from tests.sockets import MALFORMED_TEXTS, Socket

SESSION = settings.SESSION_COOKIE_NAME
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(frames, "_registered", {})
    server = Server()
    hub = Hub(server.read, server.seqs, Bookings)
    monkeypatch.setattr(hub, "start", lambda: None)
    monkeypatch.setattr(live_consumers, "hub", hub)
    return hub


@pytest.fixture
def alices_cookie(alice: User) -> str:
    client = Client()
    client.force_login(alice, "django.contrib.auth.backends.ModelBackend")
    return f"gpucoord_session={client.cookies['gpucoord_session'].value}"


def browser(cookie: str = "", origin: str = "http://localhost", query: str = "") -> Any:
    headers = [(b"host", b"localhost"), (b"origin", origin.encode()), (b"cookie", cookie.encode())]
    return Socket(application, f"/ws/live/{query}", headers=headers)


@pytest.fixture
async def page(alices_cookie: str) -> AsyncIterator[Any]:
    page = browser(alices_cookie)
    connected, _ = await page.connect()
    assert connected
    yield page
    await page.disconnect()


async def test_a_user_gets_the_whole_state(page: Any, hub: Hub) -> None:
    await sync_to_async(hub.tick)(NOW)
    said = json.loads(await page.receive_from())

    assert said["since"] == 0
    assert said["o"]["g"] == [snapshot(1).gpus[0].uuid]


async def test_an_anonymous_visitor_must_log_in() -> None:
    page = browser()
    await page.connect()

    assert await page.closed() == {"type": "websocket.close", "code": 4401}


@pytest.mark.parametrize("text", MALFORMED_TEXTS)
async def test_a_malformed_message_closes_the_socket(
    page: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    await page.send_to(text)

    assert await page.closed() == {"type": "websocket.close", "code": MALFORMED}
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


async def test_a_binary_message_closes_the_socket(page: Any) -> None:
    await page.send_to(bytes_data=b"x")

    assert await page.closed() == {"type": "websocket.close", "code": MALFORMED}


async def test_a_flooding_page_is_closed(page: Any) -> None:
    for _ in range(1000):
        await page.send_to('{"whole": true}')

    assert await page.closed() == {"type": "websocket.close", "code": FLOODING}


async def test_a_user_has_a_limited_number_of_sockets(
    alices_cookie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_consumers, "open_sockets", OpenSockets(1))
    first, second = browser(alices_cookie), browser(alices_cookie)
    await first.connect()
    await second.connect()

    assert await second.closed() == {"type": "websocket.close", "code": TOO_MANY_SOCKETS}
    await first.disconnect()
    third = browser(alices_cookie)
    await third.connect()
    assert await third.receive_nothing(0.05)


async def test_a_logged_out_page_is_closed_at_once(
    alices_cookie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_consumers, "RECHECK_S", 600.0)
    page = browser(alices_cookie)
    await page.connect()
    assert await page.receive_nothing(0.15)
    await sync_to_async(_log_out)(alices_cookie)

    assert await page.closed() == {"type": "websocket.close", "code": 4401}


async def test_a_new_password_closes_the_pages_of_earlier_sessions(
    alice: User, alices_cookie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_consumers, "RECHECK_S", 600.0)
    page = browser(alices_cookie)
    await page.connect()
    alice.set_password("another correct horse")
    await alice.asave()

    assert await page.closed() == {"type": "websocket.close", "code": 4401}


def _log_out(cookie: str) -> None:
    client = Client()
    client.cookies["gpucoord_session"] = cookie.removeprefix("gpucoord_session=")
    client.post("/logout/")


async def test_a_deactivated_user_is_closed_out(
    alice: User, alices_cookie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_consumers, "RECHECK_S", 0.05)
    page = browser(alices_cookie)
    await page.connect()
    await User.objects.filter(pk=alice.pk).aupdate(is_active=False)

    assert await page.closed() == {"type": "websocket.close", "code": 4401}


async def test_a_page_that_leaves_is_forgotten(page: Any, hub: Hub) -> None:
    assert len(hub._viewers) == 1

    await page.disconnect()

    assert not hub._viewers


@pytest.mark.parametrize(
    ("query", "topic"),
    [
        ("?on=processes", "processes"),
        ("?on=gpu:GPU-1", "gpu:GPU-1"),
        ("?on=nonsense", "dashboard"),
        ("?on=gpu:" + "x" * 200, "dashboard"),
        ("", "dashboard"),
    ],
)
async def test_a_page_watches_what_its_address_names(
    query: str, topic: str, alices_cookie: str, hub: Hub
) -> None:
    page = browser(alices_cookie, query=query)
    await page.connect()

    assert {viewer.topic for viewer in hub._viewers} == {topic}
    await page.disconnect()


async def test_an_idle_page_receives_a_heartbeat(page: Any, hub: Hub) -> None:
    await sync_to_async(hub.tick)(NOW)
    await page.receive_from()

    assert json.loads(await page.receive_from()) == {"beat": 1}


async def test_frames_without_news_do_not_delay_the_heartbeat(
    alices_cookie: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_consumers, "BEAT_S", 0.3)
    page = browser(alices_cookie, query="?on=head")
    await page.connect()
    for _ in range(12):
        await sync_to_async(hub.tick)(NOW)
        await asyncio.sleep(0.05)

    messages = []
    while not await page.receive_nothing(0.01):
        messages.append(json.loads(await page.receive_from()))
    await page.disconnect()
    assert {"beat": 1} in messages
