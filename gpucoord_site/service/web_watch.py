"""Requests /healthz from the web process at intervals; no answer for a while means that it hangs.

Nothing here blocks: the supervisor calls `is_stuck` in its loop.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress

from monitor.runtime.probes.process_identity import cpu_ticks

ASK_EVERY_S = 3.0
# Unanswered requests in a row after which the process is replaced, and the time limit of each.
MOST_UNANSWERED = 3
PATIENCE_S = 4.0
# A process that has just started imports and connects first. It uses CPU time meanwhile; one that
# uses none is stuck.
START_S = 60.0
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class WebWatch:
    """Watches the process behind the socket that is bound to `address`."""

    def __init__(
        self, listening: socket.socket, cpu_of: Callable[[int], int | None] = cpu_ticks
    ) -> None:
        self._cpu_of = cpu_of
        self._cpu: int | None = None
        self._family = listening.family
        self._address = _reachable(listening.getsockname())
        self._connection: socket.socket | None = None
        self._left = REQUEST
        self._asked_at = self._started_at = self._worked_at = time.monotonic()
        self._has_answered = False
        self._unanswered = 0

    def starts(self) -> None:
        """Reset for a new process."""
        self._close()
        self._cpu = None
        self._asked_at = self._started_at = self._worked_at = time.monotonic()
        self._has_answered = False
        self._unanswered = 0

    def is_stuck(self, pid: int) -> bool:
        """Send a request at intervals; True after MOST_UNANSWERED unanswered ones."""
        at = time.monotonic()
        if self._is_starting(at):
            self._note_work(pid, at)
        if self._connection is None:
            if at - self._asked_at >= ASK_EVERY_S:
                self._ask(at)
            return False
        if self._is_answered():
            self._close()
            self._has_answered, self._unanswered = True, 0
        elif at - self._asked_at >= PATIENCE_S:
            self._close()
            self._unanswered += 1
            if self._is_over(at):
                return True
            self._ask(at)
        return False

    def _is_over(self, at: float) -> bool:
        if self._is_starting(at):
            return at - self._worked_at >= (MOST_UNANSWERED - 1) * PATIENCE_S
        return self._unanswered >= MOST_UNANSWERED

    def _is_starting(self, at: float) -> bool:
        return not self._has_answered and at - self._started_at < START_S

    def _note_work(self, pid: int, at: float) -> None:
        """Remember when the process last used CPU time."""
        cpu = self._cpu_of(pid)
        if cpu != self._cpu:
            self._cpu, self._worked_at = cpu, at

    def _ask(self, at: float) -> None:
        self._asked_at, self._left = at, REQUEST
        self._connection = socket.socket(self._family, socket.SOCK_STREAM)
        self._connection.setblocking(False)
        with suppress(OSError):
            self._connection.connect(self._address)

    def _is_answered(self) -> bool:
        """Whether any byte of an answer arrived; its content does not matter."""
        if self._connection is None:
            return False
        try:
            if self._left:
                self._left = self._left[self._connection.send(self._left) :]
            return bool(self._connection.recv(1))
        except OSError:
            return False

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _reachable(bound: tuple[str, int] | tuple[str, int, int, int]) -> tuple[str, int]:
    """An address at which a socket that listens on all addresses can be reached."""
    host, port = bound[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port  # noqa: S104
