"""Limits on failed logins, and the page that says so. They count names and addresses.

The first limit protects a user, the second stops an address that tries many names. Both are
checked before the password is hashed, because hashing is slow.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gpucoord_site.http.client_address import is_within, network_of


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
