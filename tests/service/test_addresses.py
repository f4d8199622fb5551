from __future__ import annotations

import socket

import pytest

from gpucoord_site.config.values import LOOPBACK, own_names


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_on_loopback_only_loopback_names_are_allowed(host: str) -> None:
    assert own_names(host) == LOOPBACK


def test_one_address_is_allowed_as_people_type_it() -> None:
    assert own_names("2001:db8::7") == [*LOOPBACK, "[2001:db8::7]"]


def test_listening_everywhere_allows_this_hosts_own_name_and_no_other() -> None:
    names = own_names("0.0.0.0")

    assert socket.gethostname() in names
    assert "*" not in names
    assert "0.0.0.0" not in names
