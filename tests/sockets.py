"""A WebSocket without a server that waits as long as a busy machine needs, not for a second."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator

from tests.pace import LONGEST_S


class Socket(WebsocketCommunicator):  # type: ignore[misc]
    async def receive_output(self, seconds: float = LONGEST_S) -> Any:
        return await super().receive_output(max(seconds, LONGEST_S))

    async def closed(self) -> Any:
        """The message that closes it. Frames and beats that come before do not matter."""
        while (event := await self.receive_output())["type"] == "websocket.send":
            pass
        return event

    async def disconnect(self, code: int = 1000, seconds: float = LONGEST_S) -> None:
        """Does nothing after a message that never came: the application was cancelled then.

        Its CancelledError would keep pytest from tearing down the other fixtures.
        """
        if not (self.future.done() and self.future.cancelled()):
            await super().disconnect(code, seconds)

    async def wait(self, seconds: float = LONGEST_S) -> Any:
        """Also for a query that was cancelled: its thread goes on, and would lock the tables."""
        ended = await super().wait(max(seconds, LONGEST_S))
        # All queries run in one thread, one after the other.
        await sync_to_async(int)()
        return ended


# Messages that no page sends.
MALFORMED_TEXTS = [
    "no json",
    "[]",
    "7",
    "null",
    '{"ack": "x"}',
    '{"ack": null}',
    '{"ack": 1.5}',
    '{"ack": 1e999}',
    '{"ack": NaN}',
    '{"whole": "yes"}',
    '{"ack":' + "[" * 100_000,
    '{"ack": ' + "9" * 10_000 + "}",
    "[" * 190,
]
