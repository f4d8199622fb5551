"""WebSocket doors of the monitor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

ASGIMessage = dict[str, Any]


async def live(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[ASGIMessage]],
    send: Callable[[ASGIMessage], Awaitable[None]],
) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 4401})
