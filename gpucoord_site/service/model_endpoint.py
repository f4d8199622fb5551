"""The process of the endpoint for language models: uvicorn, while there is a model service.

It is not part of the web process: streams must not delay the live view, and daphne does not slow
down for a client that reads slowly. Import this after the fork only: no other process needs it.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from django.conf import settings
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from gpucoord_site.http import clients
from gpucoord_site.service.startup import reachable_address
from scheduler.language_models.model_proxy.api.app import ModelEndpoint
from scheduler.language_models.model_proxy.api.worker import work_on_prompts

# Limits of a connection, before any login: uvicorn has none.
# From the connection, or the first byte of a further request, to the end of the headers.
HEAD_S = 15.0
# Below the usual limit of 1024 open files; each stream has a connection to its instance, too.
MOST_CONNECTIONS = 400
# After SIGTERM, streams are ended after this time; the supervisor kills after 2 s.
STOP_S = 1


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


def serve(listening: socket.socket | None) -> int:
    """None: without a port, only for the queue of prompts."""
    # Connections inherit it. asyncio sets it only on sockets with an explicit protocol, and without
    # it each answer waits for the client's delayed acknowledgement, about 40 ms.
    if listening is not None:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    application = ModelEndpoint(
        settings.CONFIG.node,
        _rate_limit(),
        work_on_prompts,
        address_of=address_of,
        address=_address_for_hosts(listening),
    )
    # A thread reads and writes rows; it must not hold up the event loop for the usual 5 ms.
    sys.setswitchinterval(0.0005)
    gc.freeze()
    config = uvicorn.Config(
        application,
        http=LimitedProtocol,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=STOP_S,
        timeout_keep_alive=30,
        ws="none",
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[] if listening is None else [listening])
    return 0 if server.started else 1


def _address_for_hosts(listening: socket.socket | None) -> str:
    """Where other hosts reach the endpoint, not through a proxy; "" = nowhere."""
    if listening is None:
        return ""
    port = listening.getsockname()[1]
    name = urlsplit(reachable_address(settings.CONFIG, port)).hostname or ""
    return name and f"http://{f'[{name}]' if ':' in name else name}:{port}"


def address_of(scope: Mapping[str, Any]) -> str:
    """The client's address: behind a trusted proxy, the one that the proxy reports."""
    peer = str((scope.get("client") or ("",))[0])
    forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    chain = b",".join(forwarded).decode("latin-1")
    return clients.network_of(clients.find(peer, chain, settings.CONFIG.proxy_networks))


def _rate_limit() -> Callable[[int], float]:
    """The same limit as REST has; its counts are of this process."""
    limit = clients.RateLimit()

    def delay(user: int) -> float:
        per_minute: int = settings.CONFIG.requests_per_minute
        return limit.delay(user, per_minute, time.monotonic()) if per_minute else 0.0

    return delay
