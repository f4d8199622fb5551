from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.asgi import application
from gpucoord_site.http.handler import is_same_origin
from tests.sockets import Socket


def handshake(host: str, origin: str | None, *more: tuple[bytes, bytes]) -> dict[str, Any]:
    headers = [(b"host", host.encode()), *more]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    return {"type": "websocket", "path": "/ws/live/", "headers": headers}


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("LOCALHOST:8000", "http://localhost:8000"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_page_of_the_same_origin_may_connect(host: str, origin: str) -> None:
    assert is_same_origin(handshake(host, origin))


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost:9999"),
        ("localhost:8000", "http://localhost"),
        ("localhost:8000", "https://localhost:8000"),
        ("127.0.0.1:8000", "http://localhost:8000"),
        ("localhost", "http://localhost.evil.example"),
        ("localhost", "http://evil.example"),
        ("localhost", "null"),
        ("localhost", "http://localhost:99999"),
        ("localhost", "http://["),
        ("localhost", ""),
        ("localhost", None),
        ("evil.example", "http://evil.example"),
    ],
)
def test_a_page_of_another_origin_is_refused(host: str, origin: str | None) -> None:
    assert not is_same_origin(handshake(host, origin))


def test_behind_a_trusted_proxy_the_origin_is_https(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["gpu.example.org"]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    proxied = (b"x-forwarded-proto", b"https")

    assert is_same_origin(handshake("gpu.example.org", "https://gpu.example.org", proxied))
    assert not is_same_origin(handshake("gpu.example.org", "http://gpu.example.org", proxied))
    assert not is_same_origin(handshake("gpu.example.org", "https://gpu.example.org:8443", proxied))


def test_the_proxy_header_counts_only_when_the_proxy_is_trusted() -> None:
    proxied = (b"x-forwarded-proto", b"https")

    assert not is_same_origin(handshake("localhost", "https://localhost", proxied))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("signed_in", [True, False])
async def test_an_unknown_address_is_refused_without_a_traceback(
    alice: User, signed_in: bool, caplog: pytest.LogCaptureFixture
) -> None:
    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost")]
    if signed_in:
        client = Client()
        backend = "django.contrib.auth.backends.ModelBackend"
        await sync_to_async(client.force_login)(alice, backend)
        cookie = client.cookies["gpucoord_session"].value
        headers.append((b"cookie", f"gpucoord_session={cookie}".encode()))
    caplog.clear()
    for path in ("/ws/", "/ws/nothing/", "/ws/jobs/x/", "/", f"/ws/jobs/{'9' * 5000}/"):
        socket = Socket(application, path, headers=headers)
        accepted, _ = await socket.connect()
        await asyncio.wait_for(socket.future, 5)
        assert not accepted
    assert caplog.records == []


@pytest.mark.django_db(transaction=True)
async def test_a_page_on_another_port_cannot_connect() -> None:
    headers = [(b"host", b"localhost:8000"), (b"origin", b"http://localhost:9999")]
    accepted, _ = await Socket(application, "/ws/live/", headers=headers).connect()

    assert not accepted
