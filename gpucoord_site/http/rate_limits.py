"""How many REST requests a user may send to this host: a steady rate, and a minute's worth at once.

The counts are in memory, as one process serves all requests of a host.
"""

from __future__ import annotations

import math
import time
from threading import Lock

from django.conf import settings
from django.contrib.auth.models import User
from ninja.errors import HttpError

WINDOW_S = 60.0


class TooManyRequests(HttpError):
    """429. seconds: after this time, the next request is accepted."""

    def __init__(self, seconds: float, per_minute: int) -> None:
        self.seconds = max(1, math.ceil(seconds))
        text = f"You may send {per_minute} requests a minute. Try again in {self.seconds} s."
        super().__init__(429, f"{text} Many jobs fit into one POST /api/jobs/batch/.")


class RateLimit:
    """The generic cell rate algorithm (GCRA), by user."""

    def __init__(self) -> None:
        # When all requests so far would have been sent at the steady rate.
        self._due: dict[int, float] = {}
        self._lock = Lock()

    def delay(self, user: int, per_minute: int, now: float) -> float:
        """Count a request; the seconds until it is accepted, which are 0 if it is."""
        interval = WINDOW_S / per_minute
        with self._lock:
            due = max(self._due.get(user, now), now)
            delay = due + interval - (now + WINDOW_S)
            if delay > 1e-6:
                return delay
            self._due[user] = due + interval
        return 0.0


_limit = RateLimit()


def count(user: User) -> None:
    """Count a request of this user. Raises TooManyRequests."""
    per_minute: int = settings.CONFIG.requests_per_minute
    if per_minute and (delay := _limit.delay(user.pk, per_minute, time.monotonic())):
        raise TooManyRequests(delay, per_minute)
