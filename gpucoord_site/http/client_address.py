"""The address of the client: behind a trusted proxy, the one that the proxy reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from django.conf import settings
from django.http import HttpRequest

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
