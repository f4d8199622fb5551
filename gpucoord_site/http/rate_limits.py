"""How many REST requests a user may send to this host: a steady rate, and a minute's worth at once.

The counts are in memory, as one process serves all requests of a host.
"""

from __future__ import annotations

import math
import time
from datetime import timedelta
from threading import Lock
from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gpucoord_site.http.client_address import is_within, network_of

WINDOW_S = 60.0


class TooManyRequests(Exception):
    """429. seconds: after this time, the next request is accepted."""

    def __init__(self, seconds: float, per_minute: int) -> None:
        self.seconds = max(1, math.ceil(seconds))
        text = f"You may send {per_minute} requests a minute. Try again in {self.seconds} s."
        super().__init__(f"{text} Many jobs fit into one POST /api/jobs/batch/.")


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


# Limits on failed logins, and the page that says so. They count names and addresses.
#
# The first limit protects a user, the second stops an address that tries many names. Both are
# checked before the password is hashed, because hashing is slow.


def counted_address(request: HttpRequest) -> str | None:
    """The address under which failures are counted: an IPv6 client may use all of its network."""
    return network_of(request.META.get("REMOTE_ADDR") or "") or None


class LoginLimits(AxesDatabaseHandler):  # type: ignore[misc]
    """Adds the limit for an address to that for a name from an address."""

    def is_locked(self, request: Any, credentials: dict[str, Any] | None = None) -> bool:
        request.is_address_locked = self._is_address_locked(request)
        return request.is_address_locked or bool(super().is_locked(request, credentials))

    def _is_address_locked(self, request: Any) -> bool:
        address = request.axes_ip_address
        # A proxy that reports no client has the same address for all users.
        if address is None or is_within(address, settings.CONFIG.proxy_networks):
            return False
        since = get_cool_off_threshold(request)
        recent = AccessAttempt.objects.filter(ip_address=address, attempt_time__gte=since)
        failures = recent.aggregate(total=Sum("failures_since_start"))["total"] or 0
        return bool(failures >= settings.LOGIN_FAILURES_PER_ADDRESS)


def locked(request: HttpRequest, *_: object) -> HttpResponse:
    """The answer to a refused login: the reason, and for how long."""
    pause = timedelta(hours=settings.AXES_COOLOFF_TIME)
    by_address = getattr(request, "is_address_locked", False)
    tries = settings.LOGIN_FAILURES_PER_ADDRESS if by_address else settings.AXES_FAILURE_LIMIT
    context = {"pause": pause, "tries": tries, "by_address": by_address}
    response = render(request, "registration/locked.html", context, status=429)
    response["Retry-After"] = str(int(pause.total_seconds()))
    return response
