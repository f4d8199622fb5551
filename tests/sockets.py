"""A WebSocket without a server that waits as long as a busy machine needs, not for a second."""

from __future__ import annotations

from typing import Any

from channels.testing import WebsocketCommunicator

from tests.pace import LONGEST_S


class Socket(WebsocketCommunicator):  # type: ignore[misc]
    async def receive_output(self, seconds: float = LONGEST_S) -> Any:
        return await super().receive_output(max(seconds, LONGEST_S))

    async def wait(self, seconds: float = LONGEST_S) -> Any:
        return await super().wait(max(seconds, LONGEST_S))
