"""Limits of a connection to the endpoint for models, before any login: uvicorn has none."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

# From the connection, or the first byte of a further request, to the end of the headers.
HEAD_S = 15.0
# Below the usual limit of 1024 open files; each stream has a connection to its instance, too.
MOST_CONNECTIONS = 400


class LimitedProtocol(H11Protocol):
    """One connection. Bodies are limited by the application."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._waits_for_headers:
            self._forget_deadline()
        elif self._deadline is None:
            self._expect_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Part of the next request may have come with this one.
        if self._waits_for_headers and self.conn.trailing_data[0]:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    @property
    def _waits_for_headers(self) -> bool:
        # uvicorn declares it without None.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _expect_headers(self) -> None:
        self._forget_deadline()
        self._deadline = self.loop.call_later(HEAD_S, self._at_deadline)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _at_deadline(self) -> None:
        self._deadline = None
        if self._waits_for_headers and not self.transport.is_closing():
            self.transport.abort()
