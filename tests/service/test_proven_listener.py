"""The command line sends no token to a process of another account on this machine."""

from __future__ import annotations

import os
import socket
import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path

import pytest

from gpucoord_site.cli import connection, local_login, shell
from gpucoord_site.cli.client import Client, RequestFailed, Transport, prove
from monitor.owners.probes import listeners
from tests.foreign_listener import OTHER, ForeignListener, foreign_listener, needs_root

pytestmark = needs_root
SECRET = "gpc_ALICESECRET"


def url_of(other: ForeignListener, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{other.port}"


@pytest.fixture(autouse=True)
def _no_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(local_login.SERVICE_ACCOUNT, raising=False)
    monkeypatch.setattr(local_login, "SYSTEM_FOLDER", tmp_path / "run")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.7"])
def test_a_stranger_on_the_port_gets_no_token(host: str) -> None:
    with foreign_listener("127.0.0.7" if host == "127.0.0.7" else "127.0.0.1") as other:
        options = Namespace(url=url_of(other, host), token=SECRET)
        with (
            pytest.raises(
                RequestFailed, match=rf"Nothing was sent.*port {other.port}.*uid {OTHER}"
            ),
            closing(connection.connect(options)) as client,
        ):
            client.job(1)
        assert other.received() == "b''"


def test_nor_does_it_get_one_for_a_terminal() -> None:
    with foreign_listener() as other:
        with (
            pytest.raises(RequestFailed, match="Nothing was sent"),
            Client(url_of(other), SECRET) as client,
        ):
            shell.connect(client, 1)
        assert other.received() == "b''"


def test_nor_when_it_takes_the_port_while_the_connection_is_used_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        transport = Transport(f"http://127.0.0.1:{port}", {}, 5.0)
        transport.connect()
    with closing(transport), foreign_listener() as other:
        transport._port = other.port

        with pytest.raises(RequestFailed, match="Nothing was sent"):
            transport.request("GET", "/")


@pytest.mark.parametrize("known_by", ["name", "folder"])
def test_the_service_account_is_believed(known_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if known_by == "name":
        import pwd

        account = pwd.getpwnam("nobody")
        uid = account.pw_uid
        monkeypatch.setenv(local_login.SERVICE_ACCOUNT, account.pw_name)
    else:
        uid = OTHER
        local_login.SYSTEM_FOLDER.mkdir()
        os.chown(local_login.SYSTEM_FOLDER, uid, -1)

    with foreign_listener(uid=uid) as other, closing(Transport(url_of(other), {}, 5.0)) as http:
        assert http.request("GET", "/").status == 200


def test_a_listener_of_oneself_as_of_an_ssh_tunnel_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)

    with foreign_listener() as other, closing(Transport(url_of(other), {}, 5.0)) as http:
        assert http.request("GET", "/").status == 200


def test_a_port_that_needs_privilege_proves_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    monkeypatch.setattr(listeners, "UNPRIVILEGED", first)

    with foreign_listener() as other, closing(Transport(url_of(other), {}, 5.0)) as http:
        first.write_text(f"{other.port + 1}\n")
        assert http.request("GET", "/").status == 200


def test_a_wrong_name_of_the_service_account_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(local_login.SERVICE_ACCOUNT, "no-such-account")

    with foreign_listener() as other, pytest.raises(RequestFailed, match="no-such-account"):
        Transport(url_of(other), {}, 5.0).connect()


def test_the_proof_takes_less_than_two_milliseconds() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connected,
    ):
        took = []
        for _ in range(20):
            began = time.thread_time()
            prove(connected, "http://127.0.0.1")
            took.append(time.thread_time() - began)
    assert min(took) < 0.002
