"""Serves the logs of a host without pages to the other hosts of its database, and nothing else.

Each request has a ticket that only the hosts of the database can sign. The number of requests at a
time and the time of each are bounded.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scheduler.execution.pages import log_answer

PATH = re.compile(r"/internal/log/([A-Za-z0-9_:.=-]{1,2000})/")
# Of one read or write, and of a whole request.
LONGEST_S, WHOLE_S = 10.0, 30.0
MOST_AT_ONCE = 32


class LogHandler(BaseHTTPRequestHandler):
    timeout = LONGEST_S
    server_version, sys_version = "gpucoord", ""

    def do_GET(self) -> None:
        match = PATH.fullmatch(self.path)
        if match is None:
            self.send_error(404, explain="This host serves no pages.")
            return
        answer = log_answer(match[1])
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: Any) -> None:
        """Requests of other hosts are not logged."""


class LogServer(ThreadingHTTPServer):
    """On a socket that the supervisor holds."""

    daemon_threads = True

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening.getsockname()[:2], LogHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Refuse more than MOST_AT_ONCE at a time."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """A client that sends or reads a byte now and then has no longer than others."""
        deadline = threading.Timer(WHOLE_S, _end, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no fault."""


def _end(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def serve(listening: socket.socket) -> int:
    """Until SIGTERM."""
    LogServer(listening).serve_forever()
    return 0
