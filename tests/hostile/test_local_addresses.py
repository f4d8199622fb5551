"""Addresses of notifications that lead to this server: refused when stored, and never connected."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from msgspec.structs import replace

from monitor.admin.accounts import ChannelForm
from monitor.incidents.alerts.senders import NetworkLimits, OutgoingMessage, problem_of, send_all
from monitor.models import Channel
from scheduler.jobs.notifications import step

pytestmark = pytest.mark.hostile
LOCAL = [
    "127.0.0.1", "127.8.9.10", "localhost", "LOCALHOST.", "a.localhost", "ip6-localhost",
    "2130706433", "0x7f000001", "0x7F.0.0.1", "0177.0.0.1", "017700000001", "127.1", "0", "0.0.0.0",
    "[::1]", "[0:0:0:0:0:0:0:1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
    "[64:ff9b::7f00:1]", "[64:ff9b::127.0.0.1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]",
    "[2001:0:7f00:1::]", "[2001:0:808:808:0:0:80ff:fffe]", "[fe80::1]", "[fe80::1%25lo]",
    "[fec0::1]", "169.254.169.254", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::]", "[fd00:ec2::254]", "100.100.100.200", "2852039166", "0xa9fea9fe",
    "example.org@127.0.0.1", "user:word@127.0.0.1", "%31%32%37.0.0.1", "127.0.0.1%00.example.org",
]  # fmt: skip
SCHEMES = ["json", "xml", "form", "gotify", "ntfy", "rocket"]
FILES = ["template", "TEMPLATE", "%74emplate", "keyfile", "subfile", "pgpkey"]


class Listener:
    """Notes each connection to this machine at its port, over IPv4 and IPv6."""

    def __init__(self) -> None:
        self.connections = 0
        self.socket = socket.create_server(
            ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=200
        )
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                opened, _ = self.socket.accept()
                self.connections += 1
                opened.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listening = Listener()
    yield listening
    listening.socket.close()


def address(scheme: str, host: str, port: int) -> str:
    user = "u:p@" if scheme == "rocket" and "@" not in host else ""
    room = "?mode=private" if scheme == "ntfy" else "#c"
    return f"{scheme}://{user}{host}:{port}/{'t' * 24}/{room}"


def test_the_listener_is_reached_without_the_limits(listener: Listener) -> None:
    """Otherwise the tests below could not fail."""
    allowed = NetworkLimits(("127.0.0.0/8", "::1"))
    for host in ("127.0.0.1", "[::1]", "2130706433", "localhost"):
        send_all({1: OutgoingMessage(address("json", host, listener.port), "t", "x")}, 5, allowed)

    assert listener.connections >= 4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_spelling_of_a_local_address_is_connected(scheme: str, listener: Listener) -> None:
    limits = NetworkLimits()
    addresses = {host: address(scheme, host, listener.port) for host in LOCAL}
    letters = {host: OutgoingMessage(text, "t", "x") for host, text in addresses.items()}

    said = send_all(letters, 20, limits)

    assert [host for host, text in addresses.items() if not problem_of(text, limits)] == []
    assert [host for host, problem in said.items() if problem is None] == []
    assert listener.connections == 0


def test_a_user_cannot_use_the_networks_of_operators(listener: Listener) -> None:
    limits = NetworkLimits(("127.0.0.0/8",))
    text = address("json", "127.0.0.1", listener.port)
    of_user = OutgoingMessage(text, "t", "x", is_of_user=True)

    assert send_all({1: of_user}, 5, limits)[1]
    assert listener.connections == 0
    send_all({1: OutgoingMessage(text, "t", "x")}, 5, limits)
    assert listener.connections > 0


@pytest.mark.parametrize("resolved", [["127.0.0.1"], ["203.0.113.7", "127.0.0.1"], ["::1"]])
def test_a_name_that_resolves_to_this_server_is_not_connected(
    resolved: list[str], listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        asked.append(str(host))
        kinds = {True: socket.AF_INET6, False: socket.AF_INET}
        return [
            (kinds[":" in ip], socket.SOCK_STREAM, 6, "", (ip, int(port or 0))) for ip in resolved
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    text = f"json://rebound.example.org:{listener.port}/x/?cto=1&rto=1"

    assert send_all({1: OutgoingMessage(text, "t", "x")}, 10, NetworkLimits())[1]
    assert asked
    assert listener.connections == 0


def test_a_name_is_never_looked_up_again_when_it_is_connected(listener: Listener) -> None:
    """A service that gives a name to the system would be checked for another answer of the DNS."""
    text = f"rsyslog://rebound.example.org:{listener.port}/x"

    assert send_all({1: OutgoingMessage(text, "t", "x")}, 5, NetworkLimits())[1]


@pytest.mark.parametrize("host", ["example.org", "8.8.8.8", "10.1.2.3", "192.168.1.9", "[fd12::1]"])
def test_addresses_on_the_network_can_be_stored(host: str) -> None:
    assert problem_of(f"jsons://{host}/hook", NetworkLimits()) == ""


def test_tokens_that_look_like_a_local_address_are_no_hosts() -> None:
    text = "tgram://2130706433:abcdefg_hijklmnop/12315544/"

    assert problem_of(text, NetworkLimits()) == ""


@pytest.mark.parametrize("host", LOCAL)
def test_users_cannot_store_a_local_address(host: str, alice: User) -> None:
    with pytest.raises(step.InvalidService):
        step.save(alice, [], by_mail=False, address=address("json", host, 9))
    assert not Channel.objects.exists()


@pytest.mark.parametrize("name", FILES)
def test_users_cannot_store_an_address_that_names_a_file(name: str, alice: User) -> None:
    with pytest.raises(step.InvalidService):
        step.save(alice, [], by_mail=False, address=f"json://example.org/x?{name}=/etc/passwd")


def test_rest_answers_422_for_a_local_address(alice: User) -> None:
    client = Client()
    client.force_login(alice)
    body = json.dumps({"service": "json://0x7f.1:9/x"})
    answer = client.put("/api/account/notifications/", body, content_type="application/json")

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["service"]


@pytest.mark.usefixtures("db")
def test_operators_store_a_local_address_only_where_the_settings_allow_it(settings: Any) -> None:
    fields = {"name": "relay", "address": "json://127.0.0.1:9/x", "least": "info", "enabled": True}

    refused = ChannelForm(fields)
    assert "alerts_allow" in str(refused.errors["address"])
    settings.CONFIG = replace(settings.CONFIG, alerts_allow=["127.0.0.0/8"])
    assert "address" not in ChannelForm(fields).errors
