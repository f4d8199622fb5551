"""Edge: ports of this machine: the range of outgoing connections, and whether a port is free."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# The default of Linux.
USUAL = range(32_768, 61_000)


def ephemeral() -> range:
    """The ports that the kernel gives to outgoing connections."""
    try:
        first, last = map(int, EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return USUAL
    return range(first, last + 1)


def are_free(ports: range) -> bool:
    """Whether a program may listen on each of these TCP ports now, on all addresses."""
    return all(_is_free(port) for port in ports)


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                if family is socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((address, port))
        except OSError as error:
            # A machine without IPv6.
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True
