"""Edge: the accounts of TCP sockets of this host, asked from the kernel; see sock_diag(7).

Standard library only, because the command line asks too.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, TCP_LISTEN = 4, 20, 10
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 0x1, 0x300, 2, 3
HEAD = struct.Struct("=IHHII")
# Family, protocol, extensions, states; then the addresses of the socket.
REQUEST = struct.Struct("=BBxxI48s")
ADDRESSES = struct.Struct("!HH16s16s")
ANY_COOKIE = struct.pack("=III", 0, 2**32 - 1, 2**32 - 1)
# The port of the socket, its uid and its inode; the rest is skipped.
ANSWER = struct.Struct("=4x2s46x12xII")
ANSWER_S = 1.0
# The state of a socket in /proc/net/tcp.
LISTENS = "0A"
UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
Address = tuple[str, int]


def listener_uids(port: int) -> frozenset[int]:
    """The accounts whose processes listen on the port, on any address of this host."""
    try:
        families = (socket.AF_INET, socket.AF_INET6)
        listening = [pair for family in families for pair in _listeners(family)]
    except OSError:
        return _listed_uids(port)
    return frozenset(uid for of, uid in listening if of == port)


def peer_uids(connection: socket.socket) -> frozenset[int]:
    """The accounts behind the other end of a TCP connection.

    Empty: no socket of this host has that end, as on another machine, or behind a forwarding rule
    of root.
    """
    if not hasattr(socket, "AF_NETLINK"):
        return frozenset()
    here, there = connection.getsockname()[:2], connection.getpeername()[:2]
    family = connection.family
    try:
        with _netlink() as netlink:
            # The listener first: if its place was taken between the two questions, the connection
            # was accepted before, and the second answer names the account that did.
            owners = (_owner(netlink, family, there), _owner(netlink, family, there, here))
            if not any(owners) and _owner(netlink, family, here, there) is None:
                raise OSError(errno.EOPNOTSUPP, "the kernel does not list TCP sockets")
    except OSError:
        return _listed_uids(there[1])
    # A connection that waits to be accepted has no owner yet: no inode.
    return frozenset(uid for uid, inode in filter(None, owners) if inode)


def is_on_this_host(connection: socket.socket) -> bool:
    """Whether both ends of a TCP connection have an address of this host."""
    peer: str = connection.getpeername()[0]
    is_loopback = peer == "::1" or peer.removeprefix("::ffff:").startswith("127.")
    return is_loopback or peer == connection.getsockname()[0]


def needs_privilege(port: int) -> bool:
    """Whether only root, or who has the capability, can listen on the port."""
    try:
        return port < int(UNPRIVILEGED.read_text())
    except (OSError, ValueError):
        return False


def _netlink() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    netlink.settimeout(ANSWER_S)
    return netlink


def _ask(netlink: socket.socket, family: int, flags: int, states: int, addresses: bytes) -> None:
    body = REQUEST.pack(family, socket.IPPROTO_TCP, states, addresses)
    head = HEAD.pack(HEAD.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | flags, 1, 0)
    netlink.send(head + body)


def _owner(
    netlink: socket.socket, family: int, local: Address, remote: Address | None = None
) -> tuple[int, int] | None:
    """Uid and inode of a socket; without `remote`, of the one that listens there. None: no such."""
    far = _packed(family, remote[0]) if remote else b""
    ports = local[1], remote[1] if remote else 0
    addresses = ADDRESSES.pack(*ports, _packed(family, local[0]), far) + ANY_COOKIE
    _ask(netlink, family, 0, 0, addresses)
    answer = netlink.recv(65_536)
    kind = HEAD.unpack_from(answer)[1]
    if kind == NLMSG_ERROR:
        code = -struct.unpack_from("=i", answer, HEAD.size)[0]
        if code == errno.ENOENT:
            return None
        raise OSError(code, os.strerror(code))
    _, uid, inode = ANSWER.unpack_from(answer, HEAD.size)
    return uid, inode


def _packed(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0])


def _listeners(family: int) -> Iterator[tuple[int, int]]:
    """Ports and accounts of listening sockets.

    The kernel does not walk through all connections of the host, as for /proc/net/tcp.
    """
    with _netlink() as netlink:
        _ask(netlink, family, NLM_F_DUMP, 1 << TCP_LISTEN, bytes(48))
        while True:
            answer = netlink.recv(65_536)
            at = 0
            while at + HEAD.size <= len(answer):
                size, kind, *_ = HEAD.unpack_from(answer, at)
                if kind == NLMSG_DONE:
                    return
                if kind != SOCK_DIAG_BY_FAMILY or size < HEAD.size:
                    raise OSError("sock_diag is not available")
                port, uid, _ = ANSWER.unpack_from(answer, at + HEAD.size)
                yield int.from_bytes(port, "big"), uid
                at += (size + 3) & ~3


def _listed_uids(port: int) -> frozenset[int]:
    """The same from /proc, where the kernel does not answer otherwise."""
    uids: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            uids |= listening_uids(Path(table).read_text(), port)
    return frozenset(uids)


def listening_uids(table: str, port: int) -> set[int]:
    """The accounts that listen on a port, by the text of /proc/net/tcp or tcp6."""
    lines = (line.split() for line in table.splitlines()[1:])
    return {
        int(uid)
        for _, local, _, state, _, _, _, uid, *_ in lines
        if state == LISTENS and int(local.rpartition(":")[2], 16) == port
    }
