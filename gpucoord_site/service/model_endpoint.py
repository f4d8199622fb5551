"""The process of the endpoint for language models: uvicorn, while there is a model service.

It is not part of the web process: streams must not delay the live view, and daphne does not slow
down for a client that reads slowly.
"""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from gpucoord_site.http import client_address, rate_limits
from gpucoord_site.service.joining import reachable_address
from gpucoord_site.service.startup_checks import UnableToStart, bind
from monitor.runtime.rows.extensions import part

LOOK_EVERY_S = 3.0
# After SIGTERM, streams are ended after this time; the supervisor kills after 2 s.
STOP_S = 1


class EndpointSocket:
    """The listening socket, which the supervisor holds, and whether it is needed."""

    def __init__(self, host: str, web_port: int) -> None:
        self._host = host
        self._port = settings.CONFIG.endpoint_port(web_port)
        self._listening: socket.socket | None = None
        self._looked_t = -LOOK_EVERY_S
        self.problem = ""
        self.is_needed = False

    @property
    def port(self) -> int | None:
        """None: it does not listen."""
        return None if self._listening is None else int(self._listening.getsockname()[1])

    def look(self) -> None:
        """Every LOOK_EVERY_S: whether there is a model service; listen while there is one."""
        now = time.monotonic()
        if now - self._looked_t < LOOK_EVERY_S:
            return
        self._looked_t = now
        exists = part("scheduler.language_models.model_proxy.rows:exists")
        self.is_needed = exists is not None and exists()
        if self.is_needed and self._listening is None:
            self._bind()
        elif not self.is_needed:
            # Clients are refused; they would wait for a process that does not run.
            self.close()

    def _bind(self) -> None:
        try:
            self._listening = bind(self._host, self._port, "models_port")
            self.problem = ""
        except UnableToStart as error:
            self.problem = f"The endpoint for language models can't listen: {error}"

    def close(self) -> None:
        """Stop listening in this process."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def serve(self) -> int:
        """Serve until SIGTERM; returns the exit code."""
        return serve(self._listening)


def serve(listening: socket.socket | None) -> int:
    """None: without a port, only for the queue of prompts."""
    import uvicorn

    from gpucoord_site.http.transport import LimitedProtocol
    from scheduler.language_models.model_proxy.api.app import ModelEndpoint
    from scheduler.language_models.model_proxy.api.worker import work_on_prompts

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
    return client_address.network_of(
        client_address.find(peer, chain, settings.CONFIG.proxy_networks)
    )


def _rate_limit() -> Callable[[int], float]:
    """The same limit as REST has; its counts are of this process."""
    limit = rate_limits.RateLimit()

    def delay(user: int) -> float:
        per_minute: int = settings.CONFIG.requests_per_minute
        return limit.delay(user, per_minute, time.monotonic()) if per_minute else 0.0

    return delay
