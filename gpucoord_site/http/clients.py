"""Clients: their address, the rate of their requests, and log lines of logins and refusals."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from threading import Lock
from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from axes.signals import user_locked_out
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models import Sum
from django.db.models.signals import post_delete
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from monitor.models import ApiToken

Address = IPv4Address | IPv6Address
# A client can send any number itself; proxies append theirs at the end.
MOST_HOPS = 20
# A provider gives a customer at least this many bits of an IPv6 address to choose from.
IPV6_PREFIX = 64


def client_address(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Replace REMOTE_ADDR by the client's address if a trusted proxy sent the request."""

    def answer(request: HttpRequest) -> Any:
        peer = request.META.get("REMOTE_ADDR") or ""
        forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
        request.META["REMOTE_ADDR"] = find(peer, forwarded, settings.CONFIG.proxy_networks)
        return get_response(request)

    return answer


def find(peer: str, forwarded: str, proxies: Sequence[str]) -> str:
    """The last address of the chain that is no trusted proxy; `peer` when none is reported.

    Entries before it are whatever the client sent, so they do not count.
    """
    client = peer
    for entry in reversed(forwarded.split(",")[-MOST_HOPS:]):
        if not is_within(client, proxies):
            break
        address = parse(entry)
        if address is None:
            break
        client = str(address)
    return client


def is_within(address: str, networks: Sequence[str]) -> bool:
    """Whether the address is in one of the networks; False for what is no address."""
    client = parse(address)
    return client is not None and any(client in ip_network(n, strict=False) for n in networks)


def network_of(text: str) -> str:
    """The address under which a client is counted, of IPv6 its network; "" = no address."""
    address = parse(text)
    if isinstance(address, IPv6Address) and not address.is_loopback:
        return str(ip_network((address, IPV6_PREFIX), strict=False).network_address)
    return "" if address is None else str(address)


def parse(text: str) -> Address | None:
    """An address, also with a port or in brackets. ::ffff:10.0.0.5 is 10.0.0.5."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        client = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(client, "ipv4_mapped", None) or client


# How many REST requests a user may send to this host: a steady rate, and a minute's worth at once.
#
# The counts are in memory, as one process serves all requests of a host.


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


logger = logging.getLogger(__name__)
# Passwords are sometimes typed into the wrong field, so an unknown user name is not logged.
NOBODY = "(no such user)"


def listen() -> None:
    """Connect the signals of logins, lockouts and tokens."""
    user_logged_in.connect(_logged_in, dispatch_uid="security_log")
    user_logged_out.connect(_logged_out, dispatch_uid="security_log")
    user_login_failed.connect(_login_failed, dispatch_uid="security_log")
    user_locked_out.connect(_locked_out, dispatch_uid="security_log")
    post_delete.connect(_token_revoked, sender=ApiToken, dispatch_uid="security_log")


def token_refused(request: HttpRequest) -> None:
    """A request carried a token that is unknown, expired or revoked."""
    where = {"address": _address(request), "path": request.path}
    logger.warning("A token was refused", extra={"kind": "TOKEN_REFUSED", **where})


def _logged_in(request: HttpRequest | None, user: User, **_: Any) -> None:
    about = {"kind": "LOGGED_IN", "user": user.get_username(), "address": _address(request)}
    logger.info("%s logged in", user.get_username(), extra=about)


def _logged_out(request: HttpRequest | None, user: User | None, **_: Any) -> None:
    if user is not None:
        about = {"kind": "LOGGED_OUT", "user": user.get_username(), "address": _address(request)}
        logger.info("%s logged out", user.get_username(), extra=about)


def _login_failed(
    credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any
) -> None:
    user = _known(credentials.get("username"))
    about = {"kind": "LOGIN_FAILED", "user": user, "address": _address(request)}
    logger.warning("A login as %s failed", user, extra=about)


def _locked_out(request: HttpRequest, username: str | None, **_: Any) -> None:
    user = _known(username)
    about = {"kind": "LOGIN_PAUSED", "user": user, "address": _address(request)}
    logger.warning("Too many wrong passwords as %s: a pause", user, extra=about)


def _token_revoked(instance: ApiToken, **_: Any) -> None:
    owner = instance.user.get_username()
    about = {"kind": "TOKEN_REVOKED", "owner": owner, "number": instance.pk}
    logger.info("A token of %s was revoked", owner, extra=about)


def _known(username: str | None) -> str:
    """The name if a user has it; else an empty text."""
    name = (username or "").replace("\0", "\ufffd")
    return name if User.objects.filter(username=name).exists() else NOBODY


def _address(request: HttpRequest | None) -> str:
    return request.META.get("REMOTE_ADDR", "") if request is not None else ""
