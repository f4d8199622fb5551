"""The names and addresses of this host, so that they need no setting."""

from __future__ import annotations

import ipaddress
import socket

LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]


def own_names(listen_on: str) -> list[str]:
    """Accepted Host headers: loopback, and this host's names if it listens on more."""
    if is_loopback(listen_on):
        return LOOPBACK
    wide = listen_on in {"0.0.0.0", "::"}  # noqa: S104 - compared with, not bound
    own = [socket.gethostname(), *_addresses()] if wide else [_in_url(listen_on)]
    return list(dict.fromkeys([*LOOPBACK, *own]))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _addresses() -> list[str]:
    """The addresses from which this host would reach others; nothing is sent."""
    names = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                names.append(_in_url(str(probe.getsockname()[0])))
        except OSError:
            continue
    return names


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
