"""WebSocket door of the live pages: /ws/live/?on=dashboard, processes, gpu:UUID or head.

A plain ASGI application: Channels' consumer class makes a thread hop for each message, which is
the larger part of what 500 viewers cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

from channels.auth import get_user
from django.conf import settings
from django.utils import timezone

from monitor.hub import Hub, Viewer, hub
from monitor.pages.rendering import DASHBOARD, GPU_PREFIX, HEAD, PROCESSES

logger = logging.getLogger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# Told to the page, which then asks to log in instead of coming back for ever.
SIGNED_OUT = 4401
RECHECK_S = 60.0
# Frames on their way at a time. The page acknowledges every fourth, so that a slow one holds a
# few frames in the server's buffers and gets the newest next, however long it took.
WINDOW = 8


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """Feed one page until it goes, or its user may no longer see it."""
    await receive()
    await send({"type": "websocket.accept"})
    if not scope["user"].is_authenticated:
        await send({"type": "websocket.close", "code": SIGNED_OUT})
        return
    feed = Feed(hub, _topic(scope), send)
    tasks = {
        asyncio.create_task(feed.run()),
        asyncio.create_task(_listen(feed, receive)),
        asyncio.create_task(_watch_session(scope, send)),
    }
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        feed.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _listen(feed: Feed, receive: Receive) -> None:
    while (event := await receive())["type"] != "websocket.disconnect":
        feed.hear(event.get("text") or "")


class Feed:
    """Sends one viewer the newest frame whenever it is ready for it."""

    def __init__(self, hub: Hub, topic: str, send: Send) -> None:
        self._hub = hub
        self._send = send
        self._viewer: Viewer = hub.join(topic)
        self._has = 0
        self._on_the_way: deque[int] = deque()

    async def run(self) -> None:
        while True:
            await self._viewer.changed.wait()
            self._viewer.changed.clear()
            text = self._newest() if len(self._on_the_way) < WINDOW else None
            if text is None:
                continue
            try:
                await self._send({"type": "websocket.send", "text": text})
            except Exception:
                # Each server has its own error for a browser that left a moment ago.
                logger.debug("A viewer left while a frame was sent", exc_info=True)
                return

    def _newest(self) -> str | None:
        """What this viewer lacks of the newest frame; it counts as sent."""
        frame = self._hub.frame
        if frame is None or (frame.n == self._has and not frame.problem):
            return None
        text = frame.message(self._viewer.topic, self._has, timezone.now().timestamp())
        if text is not None:
            self._has = frame.n
            self._on_the_way.append(frame.n)
        return text

    def hear(self, text: str) -> None:
        """{"ack": n}: it has all up to n. {"whole": true}: it lost track, send everything."""
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            said = json.loads(text)
            if said.get("whole"):
                self._has = 0
                self._on_the_way.clear()
                self._viewer.changed.set()
            self._acknowledge(int(said.get("ack", 0)))

    def _acknowledge(self, n: int) -> None:
        was_full = len(self._on_the_way) >= WINDOW
        while self._on_the_way and self._on_the_way[0] <= n:
            self._on_the_way.popleft()
        if was_full and len(self._on_the_way) < WINDOW:
            self._viewer.changed.set()

    def close(self) -> None:
        self._hub.leave(self._viewer)


def _topic(scope: Scope) -> str:
    wanted = parse_qs(scope.get("query_string", b"").decode("ascii", "replace")).get("on", [""])[0]
    known = wanted in (PROCESSES, HEAD) or (wanted.startswith(GPU_PREFIX) and len(wanted) < 110)
    return wanted if known else DASHBOARD


async def _watch_session(scope: Scope, send: Send) -> None:
    """Close once the user has logged out, was deactivated, or has a new password."""
    engine = import_module(settings.SESSION_ENGINE)
    while True:
        await asyncio.sleep(RECHECK_S)
        fresh = {"session": engine.SessionStore(scope["session"].session_key)}
        user = await get_user(fresh)
        if not user.is_authenticated or user.pk != scope["user"].pk:
            await send({"type": "websocket.close", "code": SIGNED_OUT})
            return
