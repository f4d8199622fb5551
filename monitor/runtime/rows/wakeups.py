"""Wake-ups between gpucoord's processes: a datagram on this host, NOTIFY to the other hosts.

Wake-ups are hints only. A lost one costs a second, because every waiter also polls once a second.
"""

from __future__ import annotations

import logging
import select
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from monitor.runtime.probes import datagrams

CHANNEL = "gpucoord"
RECONNECT_S = 5.0
logger = logging.getLogger(__name__)
FAULT = {"kind": "WAKE_UP_FAULT"}


def socket_folder() -> Path:
    return Path(settings.DATA) / "run"


def wake(name: str, payload: bytes = b"", *, only_here: bool = False) -> None:
    """Wake every listener of `name` once the surrounding transaction is committed.

    only_here: those of this host.
    """
    transaction.on_commit(lambda: _send(name, payload, only_here), robust=True)


def _send(name: str, payload: bytes, only_here: bool) -> None:
    datagrams.send(socket_folder(), name, payload)
    if not only_here and connection.vendor == "postgresql":
        try:
            with connection.cursor() as cursor:
                text = f"{name} {payload.decode(errors='replace')} {settings.CONFIG.node}"
                cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, text])
        except Exception:
            logger.warning("Cannot wake up the other hosts", exc_info=True, extra=FAULT)


class Listener:
    """Hears wake-ups for `name`. Wait until `fileno()` is readable, then `drain()`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox = datagrams.Inbox(socket_folder(), name)
        self._remote = _Remote(name) if connection.vendor == "postgresql" else None
        self._epoll = select.epoll() if self._remote else None
        if self._epoll and self._remote:
            self._epoll.register(self._inbox.fileno(), select.EPOLLIN)
            self._remote.connect(self._epoll)

    def fileno(self) -> int:
        """The descriptor to wait on; -1 once closed."""
        return self._epoll.fileno() if self._epoll else self._inbox.fileno()

    def drain(self) -> list[bytes]:
        """The payloads received."""
        payloads = self._inbox.drain()
        if self._epoll and self._remote:
            payloads += self._remote.drain(self._epoll)
        return payloads

    def close(self) -> None:
        self._inbox.close()
        if self._epoll and self._remote:
            self._remote.close()
            self._epoll.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Remote:
    """A separate connection that LISTENs; a broken one is reopened at most every RECONNECT_S."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connection: Any = None
        self._tried_at = 0.0

    def connect(self, epoll: select.epoll) -> None:
        self._tried_at = time.monotonic()
        try:
            # Django closes its own connection at times, and it receives nothing while in use.
            params = connection.get_connection_params()
            # Opened by the driver: Django refuses to connect in an event loop.
            self._connection = connection.Database.connect(  # type: ignore[attr-defined]
                **params, autocommit=True
            )
            self._connection.execute(f"LISTEN {CHANNEL}")
            epoll.register(self._connection.fileno(), select.EPOLLIN)
        except Exception:
            logger.warning(
                "Cannot listen for wake-ups from other hosts", exc_info=True, extra=FAULT
            )
            self.close()

    def drain(self, epoll: select.epoll) -> list[bytes]:
        if self._connection is None:
            if time.monotonic() - self._tried_at > RECONNECT_S:
                self.connect(epoll)
            return []
        fd = self._connection.fileno()
        try:
            texts = [n.payload for n in self._connection.notifies(timeout=0)]
        except Exception:
            text = "Lost the connection for wake-ups from other hosts; reconnecting"
            logger.warning(text, exc_info=True, extra=FAULT)
            epoll.unregister(fd)
            self.close()
            return []
        # Name, payload and host. An older version sends no payload.
        parts = [text.split(" ", 2) for text in texts if text.count(" ") >= 2]
        return [
            payload.encode()
            for name, payload, host in parts
            if name == self._name and host != settings.CONFIG.node
        ]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
