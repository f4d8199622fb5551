"""Serves with short time limits, for test_transport.py: `python -m ... FD`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from gpucoord_site.http import transport
from gpucoord_site.service import web as web_process
from monitor.pages.hub import Receive, Scope, Send, login_check, page_message, serve_feed

HEAD_S, BODY_S = 1.5, 2.5
LARGE = 500_000


class Quiet:
    """A feed that sends nothing."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    def hear(self, text: str | None) -> None:
        page_message(text)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the body. A WebSocket gets a quiet feed; /large a message first."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        if scope["path"] == "/large":
            await send({"type": "websocket.send", "text": "x" * LARGE})
        with login_check(1, _is_allowed, 60.0) as login:
            await serve_feed(Quiet(), receive, send, login)
        return
    size, more = 0, True
    while more:
        event: dict[str, Any] = await receive()
        size, more = size + len(event.get("body", b"")), event.get("more_body", False)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _is_allowed() -> bool:
    return True


if __name__ == "__main__":
    transport.HEAD_S, transport.BODY_S, transport.LINGER_S = HEAD_S, BODY_S, 0.5
    web_process.application = application  # type: ignore[assignment]
    web_process.hub.start = lambda: None  # type: ignore[method-assign]
    sys.exit(web_process.serve(socket.socket(fileno=int(sys.argv[1]))))
