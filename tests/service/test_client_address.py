from __future__ import annotations

import pytest

from gpucoord_site.config.settings import ConfigError, load_config
from gpucoord_site.http.clients import find

PROXIES = ["127.0.0.1", "::1", "10.0.0.0/8"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("::ffff:127.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("127.0.0.1", "evil, 203.0.113.9, 192.0.2.1", "192.0.2.1"),
        ("127.0.0.1", "192.0.2.1, 10.0.0.7", "192.0.2.1"),
        ("127.0.0.1", "10.0.0.8, 10.0.0.7", "10.0.0.8"),
        ("127.0.0.1", "192.0.2.1:4711", "192.0.2.1"),
        ("127.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("127.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "unknown", "127.0.0.1"),
        ("127.0.0.1", "192.0.2.1, unknown, 10.0.0.7", "10.0.0.7"),
        ("203.0.113.5", "192.0.2.1", "203.0.113.5"),
        ("", "192.0.2.1", ""),
        ("127.0.0.1", "1.1.1.1," + "10.0.0.1," * 100_000, "127.0.0.1"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(
    peer: str, forwarded: str, client: str
) -> None:
    assert find(peer, forwarded, PROXIES) == client


def test_without_trusted_proxies_the_header_does_not_count() -> None:
    assert find("127.0.0.1", "192.0.2.1", []) == "127.0.0.1"


def test_a_proxy_on_this_machine_is_trusted_once_the_service_has_a_public_name() -> None:
    assert load_config().proxy_networks == []
    assert load_config(https=True).proxy_networks == ["127.0.0.1", "::1"]
    assert load_config(allowed_hosts="gpu.example.org").proxy_networks == ["127.0.0.1", "::1"]
    assert load_config(https=True, trusted_proxies="10.0.0.9").proxy_networks == ["10.0.0.9"]
    assert load_config(https=True, trusted_proxies=[]).proxy_networks == []


def test_a_bad_proxy_is_named() -> None:
    with pytest.raises(ConfigError, match=r'"nginx" must be an address or network'):
        load_config(trusted_proxies="nginx")
