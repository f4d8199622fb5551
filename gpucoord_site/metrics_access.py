"""Who may read /metrics: a token's owner, and addresses that the settings allow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from django.http import HttpRequest

from gpucoord_site import security_log
from monitor import access

REFUSED = "This token is unknown, expired or revoked. `gpucoord token USER` makes a new one.\n"
WHO = (
    "Send a token: Authorization: Bearer TOKEN (`gpucoord token USER` makes one), "
    "or ask from an address that the setting metrics_allow names.\n"
)
# Whoever comes through a proxy has the proxy's address, which says nothing of them.
PROXIED = ("HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_PROTO", "HTTP_X_REAL_IP", "HTTP_FORWARDED")


def refusal(request: HttpRequest, allowed: Sequence[str], now: datetime) -> str | None:
    """Why the one who asks may not read; None = they may."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        if access.authenticate(token.strip(), now):
            return None
        security_log.token_refused(request)
        return REFUSED
    if any(name in request.META for name in PROXIED):
        return WHO
    return None if is_allowed(request.META.get("REMOTE_ADDR", ""), allowed) else WHO


def is_allowed(address: str, allowed: Sequence[str]) -> bool:
    try:
        found = _plain(ip_address(address))
    except ValueError:
        return False
    return any(found in ip_network(name, strict=False) for name in allowed)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address as a socket for both kinds tells it (::ffff:10.0.0.5) is that address."""
    return getattr(address, "ipv4_mapped", None) or address
