"""The web process: daphne on the socket that the supervisor bound, with the live hub inside."""

from __future__ import annotations

import socket


def serve(listening: socket.socket) -> None:
    """Serve until SIGTERM. Connections that come while this starts wait in the socket's queue."""
    # Daphne installs Twisted's reactor when it is imported: never before the fork.
    from daphne.server import Server

    from gpucoord_site.asgi import application
    from monitor.hub import hub

    server = Server(application, endpoints=["adopted below"], server_name="gpucoord")
    # Endpoints are strings that Twisted looks up in its plugins; it has none for a bound IPv6
    # socket, and searching costs time at each start.
    server.endpoints = []
    from twisted.internet import reactor

    def listen() -> None:
        listening.setblocking(False)
        reactor.adoptStreamPort(listening.fileno(), listening.family, server.http_factory)
        listening.close()

    reactor.callWhenRunning(listen)
    reactor.callWhenRunning(hub.start)
    server.run()
