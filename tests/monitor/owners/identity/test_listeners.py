"""The accounts of listening sockets and of the other end of a connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from monitor.owners.probes import listeners
from monitor.owners.probes.listeners import is_on_this_host, listener_uids, peer_uids
from tests.foreign_listener import OTHER, foreign_listener, needs_root


@contextmanager
def connection(address: str, at: str) -> Iterator[socket.socket]:
    """A connection to `at` of a socket of this process that listens on `address`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server(
            (address, 0), family=family, dualstack_ipv6=address == "::"
        ) as listening,
        socket.create_connection((at, listening.getsockname()[1])) as connected,
    ):
        yield connected


PLACES = [
    ("127.0.0.1", "127.0.0.1"),
    ("0.0.0.0", "127.8.9.1"),
    ("::", "127.0.0.1"),
    ("::1", "::1"),
    ("::", "::ffff:127.0.0.1"),
]


@pytest.mark.parametrize(("address", "at"), PLACES)
def test_the_other_end_is_of_the_account_that_listens(address: str, at: str) -> None:
    with connection(address, at) as connected:
        assert peer_uids(connected) == {os.geteuid()}
        assert is_on_this_host(connected)


@needs_root
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_listener_of_another_account_is_named_also_before_it_accepts(address: str) -> None:
    with (
        foreign_listener(address) as other,
        socket.create_connection((address, other.port)) as first,
        socket.create_connection((address, other.port)) as waiting,
    ):
        assert peer_uids(first) == peer_uids(waiting) == {OTHER}


@needs_root
def test_who_accepted_is_named_after_another_account_has_taken_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        connected = socket.create_connection(("127.0.0.1", port))
        accepted, _ = listening.accept()
    with connected, accepted:
        os.fchown(accepted.fileno(), OTHER, OTHER)

        assert peer_uids(connected) == {OTHER}


def test_an_end_that_is_no_socket_of_this_host_has_no_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind a forwarding rule: the kernel knows this end of the connection alone."""
    owner = listeners._owner

    def forwarded(*question: object) -> object:
        return owner(*question) if question[2] == here else None  # type: ignore[arg-type]

    with connection("127.0.0.1", "127.0.0.1") as connected:
        here = connected.getsockname()
        monkeypatch.setattr(listeners, "_owner", forwarded)

        assert peer_uids(connected) == frozenset()


@pytest.mark.parametrize(("address", "at"), PLACES)
def test_the_kernel_and_the_table_of_connections_agree(
    monkeypatch: pytest.MonkeyPatch, address: str, at: str
) -> None:
    with connection(address, at) as connected:
        port = connected.getpeername()[1]
        by_kernel = listener_uids(port), peer_uids(connected)
        # A kernel without sock_diag says that it has no such socket.
        monkeypatch.setattr(listeners, "_owner", lambda *_: None)
        assert peer_uids(connected) == by_kernel[1]
        assert listeners._listed_uids(port) == by_kernel[0]


def test_a_port_below_the_first_open_one_needs_privilege() -> None:
    first = int(listeners.UNPRIVILEGED.read_text())

    assert not listeners.needs_privilege(first)
    assert listeners.needs_privilege(first - 1)
