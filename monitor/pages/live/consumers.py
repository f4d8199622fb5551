"""WebSocket of the live pages: /ws/live/?on=dashboard, processes, gpu:UUID, region:NAME or head."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from urllib.parse import parse_qs

from django.utils import timezone

from monitor.pages.live.hub import Hub, Viewer, hub
from monitor.pages.live.regions import regions
from monitor.pages.live.rendering import DASHBOARD, GPU_PREFIX, HEAD, PROCESSES, REGION_PREFIX
from monitor.pages.live.socket import (
    SIGNED_OUT,
    Receive,
    Scope,
    Send,
    is_same_user,
    page_message,
    serve_page,
)

# Unacknowledged frames at a time. The page acknowledges every fourth frame, so a slow page holds
# few frames in the server's buffers and then gets the newest.
WINDOW = 8
# The complete state is large: a page gets it at most once in this time.
WHOLE_EVERY_S = 1.0
# Sent after this time without another message. A page without messages for 4.5 s reports it.
BEAT_S = 1.5
BEAT = '{"beat":1}'
LONGEST_TOPIC = 110


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """Feed one page until it leaves or its user loses access."""
    await receive()
    await send({"type": "websocket.accept"})
    if not scope["user"].is_authenticated:
        await send({"type": "websocket.close", "code": SIGNED_OUT})
        return

    @asynccontextmanager
    async def open_feed(send: Send) -> AsyncIterator[LiveFeed]:
        feed = LiveFeed(hub, _topic(scope), send)
        try:
            yield feed
        finally:
            feed.close()

    await serve_page(scope, receive, send, open_feed, lambda: is_same_user(scope))


class LiveFeed:
    """Sends one viewer the newest frame as soon as the viewer can take it."""

    def __init__(self, hub: Hub, topic: str, send: Send) -> None:
        self._hub = hub
        self._send = send
        self._viewer: Viewer = hub.join(topic)
        self._sent = 0
        self._unacknowledged: deque[int] = deque()
        self._whole_at = float("-inf")
        self._whole_timer: asyncio.TimerHandle | None = None
        self._sent_at = monotonic()
        self._is_beat_due = False
        self._beat_timer = asyncio.get_running_loop().call_later(BEAT_S, self._check_beat)

    async def run(self) -> None:
        while True:
            await self._viewer.changed.wait()
            self._viewer.changed.clear()
            text = self._next()
            if text is not None:
                await self._send({"type": "websocket.send", "text": text})
                self._sent_at = monotonic()

    def _next(self) -> str | None:
        """The next message. None: nothing is new for this viewer, or the viewer is too slow."""
        is_beat_due, self._is_beat_due = self._is_beat_due, False
        if len(self._unacknowledged) >= WINDOW:
            return None
        return self._newest() or (BEAT if is_beat_due else None)

    def _check_beat(self) -> None:
        """Wake the feed if nothing was sent for BEAT_S. One timer costs less than one per frame."""
        left = self._sent_at + BEAT_S - monotonic()
        if left <= 0:
            self._is_beat_due, left = True, BEAT_S
            self._viewer.changed.set()
        self._beat_timer = asyncio.get_running_loop().call_later(left, self._check_beat)

    def _newest(self) -> str | None:
        """The part of the newest frame that this viewer lacks. Marks the frame as sent."""
        frame = self._hub.frame
        if frame is None or (frame.n == self._sent and not frame.problem):
            return None
        text = frame.message(self._viewer.topic, self._sent, timezone.now().timestamp())
        if text is not None and self._viewer.topic in frame.boards:
            self._sent = frame.n
            self._unacknowledged.append(frame.n)
        return text

    def hear(self, text: str | None) -> None:
        """{"ack": n}: the page shows frame n. {"whole": true}: it needs the complete state."""
        message = page_message(text)
        if message.whole and self._whole_timer is None:
            wait_s = max(0.0, self._whole_at + WHOLE_EVERY_S - monotonic())
            if wait_s:
                loop = asyncio.get_running_loop()
                self._whole_timer = loop.call_later(wait_s, self._send_whole)
            else:
                self._send_whole()
        self._acknowledge(message.ack)

    def _send_whole(self) -> None:
        self._whole_at, self._whole_timer = monotonic(), None
        self._sent = 0
        self._unacknowledged.clear()
        self._viewer.changed.set()

    def _acknowledge(self, n: int) -> None:
        was_full = len(self._unacknowledged) >= WINDOW
        while self._unacknowledged and self._unacknowledged[0] <= n:
            self._unacknowledged.popleft()
        if was_full and len(self._unacknowledged) < WINDOW:
            self._viewer.changed.set()

    def close(self) -> None:
        self._beat_timer.cancel()
        if self._whole_timer is not None:
            self._whole_timer.cancel()
        self._hub.leave(self._viewer)


def _topic(scope: Scope) -> str:
    query = parse_qs(scope.get("query_string", b"").decode("ascii", "replace"))
    topic = query.get("on", [""])[0]
    is_gpu = topic.startswith(GPU_PREFIX) and len(topic) < LONGEST_TOPIC
    alone = {f"{REGION_PREFIX}{region.name}" for region in regions()}
    return topic if is_gpu or topic in (PROCESSES, HEAD) or topic in alone else DASHBOARD
