"""Wake-ups between gpucoord's processes: a datagram on this host, NOTIFY to the other hosts.

They carry no truth: the database does. A lost one costs a second, as all who wait also poll.
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

from monitor import datagrams

CHANNEL = "gpucoord"
RECONNECT_S = 5.0
logger = logging.getLogger(__name__)
FAULT = {"kind": "WAKE_UP_FAULT"}


def socket_folder() -> Path:
    return Path(settings.DATA) / "run"


def wake(name: str, payload: bytes = b"") -> None:
    """Wake every listener of `name` once the surrounding transaction is committed."""
    transaction.on_commit(lambda: _send(name, payload), robust=True)


def _send(name: str, payload: bytes) -> None:
    datagrams.send(socket_folder(), name, payload)
    if connection.vendor == "postgresql":
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_notify(%s, %s)", [CHANNEL, f"{name} {settings.CONFIG.node}"]
                )
        except Exception:
            logger.warning("No wake-up reached the other hosts", exc_info=True, extra=FAULT)


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
        """What to wait on; -1 once closed."""
        return self._epoll.fileno() if self._epoll else self._inbox.fileno()

    def drain(self) -> list[bytes]:
        """The payloads that came; a wake-up from another host has an empty one."""
        found = self._inbox.drain()
        if self._epoll and self._remote:
            found += self._remote.drain(self._epoll)
        return found

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
    """A connection of its own that LISTENs; when it breaks it is made anew, not too often."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connection: Any = None
        self._tried_at = 0.0

    def connect(self, epoll: select.epoll) -> None:
        self._tried_at = time.monotonic()
        try:
            # Django's own connection would be closed under us, and hears nothing while in use.
            params = connection.get_connection_params()
            self._connection = connection.get_new_connection(params)
            self._connection.autocommit = True
            self._connection.execute(f"LISTEN {CHANNEL}")
            epoll.register(self._connection.fileno(), select.EPOLLIN)
        except Exception:
            logger.warning("Can't listen for wake-ups of other hosts", exc_info=True, extra=FAULT)
            self.close()

    def drain(self, epoll: select.epoll) -> list[bytes]:
        if self._connection is None:
            if time.monotonic() - self._tried_at > RECONNECT_S:
                self.connect(epoll)
            return []
        fd = self._connection.fileno()
        try:
            heard = [n.payload.partition(" ") for n in self._connection.notifies(timeout=0)]
        except Exception:
            text = "Lost the wake-ups of other hosts; trying again"
            logger.warning(text, exc_info=True, extra=FAULT)
            epoll.unregister(fd)
            self.close()
            return []
        return [
            b"" for name, _, host in heard if name == self._name and host != settings.CONFIG.node
        ]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
