"""The web process: daphne on the socket that the supervisor bound, with the live hub inside.

Daphne installs Twisted's reactor when it is imported: import this after the fork only.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import warnings

from daphne.server import Server
from twisted.internet import reactor

from gpucoord_site.asgi import application
from monitor.hub import hub

logger = logging.getLogger(__name__)


class Web(Server):  # type: ignore[misc]
    """Daphne's server, which stumbles at its end over connections that never sent a request."""

    def kill_all_applications(self) -> object:
        nothing = asyncio.get_event_loop().create_future()
        nothing.set_result(None)
        for details in self.connections.values():
            details.setdefault("application_instance", nothing)
        return super().kill_all_applications()


def serve(listening: socket.socket) -> int:
    """Serve until SIGTERM; returns the exit code, not 0 when it could not begin.

    Connections that come while this starts wait in the socket's queue.
    """
    # WhiteNoise hands out small files from memory, which is as quick as asynchronous reading.
    warnings.filterwarnings("ignore", "StreamingHttpResponse must consume synchronous iterators")
    # Verbosity 2 sends Twisted's own complaints to the log instead of nowhere.
    web = Web(application, endpoints=["adopted below"], server_name="gpucoord", verbosity=2)
    # Endpoints are strings that Twisted looks up in its plugins; it has none for a bound IPv6
    # socket, and searching costs time at each start.
    web.endpoints = []
    failed = False

    def begin() -> None:
        nonlocal failed
        try:
            hub.start()
            # What is loaded stays: no collection need look at it again.
            gc.freeze()
            listening.setblocking(False)
            reactor.adoptStreamPort(listening.fileno(), listening.family, web.http_factory)
            listening.close()
        except Exception:
            text = "The web process can't begin"
            logger.exception(text, extra={"kind": "WEB_START_FAILED"})
            failed = True
            web.stop()

    reactor.callWhenRunning(begin)
    web.run()
    return int(failed)
