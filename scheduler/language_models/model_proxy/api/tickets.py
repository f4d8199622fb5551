"""Tickets for requests that the endpoint of one host passes on to that of another.

The other host gets no token of the user. A ticket is signed with the secret key, which all hosts
share. It is for one host, user and path, and valid once, for two minutes. An endpoint that starts
knows of no used ones, and refuses those from before its start.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from django.core import signing

SCHEME = "gpucoord-host"
SALT, LIVES = "gpucoord.request-of-another-host", timedelta(minutes=2)


def ticket(host: str, user_id: int, path: str) -> str:
    """path: of the request, below the base of the API."""
    once = secrets.token_hex(8)
    body = {"host": host, "user": user_id, "path": path, "once": once, "at": time.time()}
    return signing.dumps(body, salt=SALT)


class Tickets:
    """Checks the tickets that other hosts send to `host`."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._began = time.time()
        # Used ones, the oldest first, until they expire.
        self._used: dict[str, float] = {}

    def user_of(self, text: str, path: str) -> int | None:
        """The id of the user; None: the ticket is not valid, or was used."""
        try:
            body = signing.loads(text, salt=SALT, max_age=LIVES)
        except signing.BadSignature:
            return None
        self._forget_expired()
        if body["at"] < self._began:
            return None
        if (body["host"], body["path"]) != (self._host, path) or body["once"] in self._used:
            return None
        self._used[body["once"]] = time.monotonic() + LIVES.total_seconds()
        return int(body["user"])

    def _forget_expired(self) -> None:
        while self._used:
            oldest = next(iter(self._used))
            if self._used[oldest] > time.monotonic():
                return
            del self._used[oldest]
