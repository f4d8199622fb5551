"""The web process: daphne on the socket that the supervisor bound, with the live hub inside.

Daphne installs Twisted's reactor when it is imported: import this module after the fork only.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from threading import Timer

from gpucoord_site.asgi import application
from gpucoord_site.service.logs import imported_without
from monitor.pages.hub import hub

# TLS is a matter of the reverse proxy, and click of commands. The fast code for long messages
# would load a parser of C, and what a page sends is short.
with imported_without("OpenSSL", "click", "_nvx_utf8validator", "_nvx_xormasker"):
    from daphne.server import Server
    from twisted.internet import reactor
    from twisted.logger import STDLibLogObserver, globalLogPublisher

    from gpucoord_site.http.transport import LimitedFactory


logger = logging.getLogger(__name__)
# Bytes that may be received; a page sends acknowledgements only. The limit for whole messages
# would hold for those that are sent, too.
LARGEST_FRAME = 4096
# The first frames come before REST is loaded, which takes a quarter of a second.
REST_AFTER_S = 1.0


class Web(Server):  # type: ignore[misc]
    """Daphne's server. Its shutdown would fail on connections that never sent a request."""

    def kill_all_applications(self) -> object:
        nothing = asyncio.get_event_loop().create_future()
        nothing.set_result(None)
        for details in self.connections.values():
            details.setdefault("application_instance", nothing)
        return super().kill_all_applications()


def serve(listening: socket.socket, beside: Callable[[], None] = lambda: None) -> int:
    """Serve until SIGTERM; returns the exit code, not 0 when it could not begin.

    beside: starts what runs in threads of this process.

    Connections that come while this starts wait in the socket's queue.
    """
    # Verbosity 2 would put stdout and stderr of this process into the log: a log that cannot be
    # written to would then log that.
    web = Web(
        application,
        endpoints=["adopted below"],
        server_name="gpucoord",
        verbosity=1,
        websocket_max_frame_size=LARGEST_FRAME,
    )
    # Endpoints are strings that Twisted looks up in its plugins; it has none for a bound IPv6
    # socket, and searching costs time at each start.
    web.endpoints = []
    failed = False

    def begin() -> None:
        nonlocal failed
        try:
            globalLogPublisher.addObserver(STDLibLogObserver("daphne.twisted"))  # type: ignore[arg-type]
            hub.start()
            beside()
            listening.setblocking(False)
            web.http_factory = LimitedFactory(web)
            reactor.adoptStreamPort(listening.fileno(), listening.family, web.http_factory)
            listening.close()
            later = Timer(REST_AFTER_S, _load_rest)
            later.daemon = True
            later.start()
        except Exception:
            text = "The web process can't begin"
            logger.exception(text, extra={"kind": "WEB_START_FAILED"})
            failed = True
            web.stop()

    reactor.callWhenRunning(begin)
    web.run()
    return int(failed)


def _load_rest() -> None:
    """Load REST. An import that fails does so again at its first request, which reports it."""
    with suppress(Exception):
        import_module("gpucoord_site.http.api")
    # Loaded modules stay, so later garbage collections need not scan them.
    gc.freeze()
