"""HTTP requests of the command line, by the standard library: it starts faster than httpx."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from gpucoord_site.cli import local_login
from monitor.facts import input_rules
from monitor.owners.identity.probes.listeners import is_on_this_host, needs_privilege, peer_uids

CONNECT_S = 5.0


class RequestFailed(Exception):
    """The request failed; the message says why, and what to do."""


class NotReachable(RequestFailed):
    """The server did not respond; a later request may succeed."""


class NeverReached(NotReachable):
    """The request was not sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Raises ValueError."""
        return input_rules.parse_json(self.content)


class Transport:
    """One connection to the server, kept open between requests."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self.headers = dict(headers)
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        try:
            self._parts = urlsplit(self.url)
            self._port = self._parts.port
        except ValueError as error:
            raise RequestFailed(f"{url} is not an address: {error}") from None
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise RequestFailed(f"{url} is not an address; it starts with http://.")

    def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request; body: JSON. Raises NotReachable."""
        address = self._parts.path + path
        if params:
            address += ("&" if "?" in path else "?") + urlencode(params)
        data = None if body is None else json.dumps(body).encode()
        sent = self.headers | dict(headers or {})
        if data is not None:
            sent["Content-Type"] = "application/json"
        elif method != "GET":
            sent["Content-Length"] = "0"
        return self._sent(method, address, data, sent)

    def connect(self) -> None:
        """Raises NeverReached if the server does not listen."""
        self._connected()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _sent(
        self, method: str, address: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        is_reused = self._connection is not None
        try:
            return self._exchange(method, address, data, headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self.close()
            # The server closed an idle connection; the request did not arrive.
            if is_reused:
                return self._sent(method, address, data, headers)
            raise self._unreachable(error, NotReachable) from None
        except TimeoutError:
            self.close()
            raise NotReachable(f"gpucoord at {self.url} does not answer.") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error, NotReachable) from None

    def _exchange(
        self, method: str, address: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        connection = self._connection or self._connected()
        connection.request(method, address, body=data, headers=dict(headers))
        response = connection.getresponse()
        content = response.read()
        if response.will_close:
            self.close()
        by_name = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, by_name, content)

    def _connected(self) -> http.client.HTTPConnection:
        is_https = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
        limit_s = min(CONNECT_S, self._timeout_s)
        connection = kind(self._parts.hostname or "", self._port, timeout=limit_s)
        try:
            connection.connect()
        except TimeoutError:
            raise NeverReached(f"gpucoord at {self.url} does not answer.") from None
        except (OSError, UnicodeError) as error:
            raise self._unreachable(error, NeverReached) from None
        if not is_https:
            prove(connection.sock, self.url)
        connection.sock.settimeout(self._timeout_s)
        # Small requests are sent at once.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        return connection

    def _unreachable(self, error: Exception, kind: type[NotReachable]) -> NotReachable:
        reason = str(error).strip() or type(error).__name__
        return kind(
            f"gpucoord can't be reached at {self.url} ({reason}). Does it run? "
            "Its address is given by --url or GPUCOORD_URL."
        )


def connected(host: str, port: int, url: str) -> socket.socket:
    """A proven connection without TLS. Raises OSError, or RequestFailed with a sentence."""
    connection = socket.create_connection((host, port), CONNECT_S)
    prove(connection, url)
    connection.settimeout(None)
    return connection


def prove(connection: socket.socket, url: str) -> None:
    """Before a secret is sent to a process of this machine: it must be of the service, by its uid.

    Above port 1023, every account can listen while the service does not. Raises RequestFailed.
    """
    port: int = connection.getpeername()[1]
    try:
        if is_on_this_host(connection) and not needs_privilege(port):
            local_login.check_uids(peer_uids(connection), f"port {port}")
    except local_login.LoginRefused as error:
        connection.close()
        raise RequestFailed(f"Nothing was sent to {url}. {error}") from None
