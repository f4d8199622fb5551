"""The server of logs on a host without pages: signed requests only, and bounded ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core import signing

from gpucoord_site.service import log_server
from scheduler.execution import pages
from scheduler.execution.probes import RemoteLog
from scheduler.runner import files
from tests.pace import LONGEST_S, Stopwatch
from tests.processes.service import ROOT


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(log_server, "MOST_AT_ONCE", 2)
    listening = socket.create_server(("127.0.0.1", 0))
    server = log_server.LogServer(listening)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.shutdown()
    server.server_close()
    thread.join(LONGEST_S)


def log_of(address: str, host: str) -> RemoteLog:
    def ticket(offset: int, limit: int) -> str:
        facts = {"host": host, "job": 7, "number": 1, "offset": offset, "limit": limit}
        return signing.dumps(facts, salt=pages.SALT)

    return RemoteLog("gpubox", address, 7, 1, ticket)


def test_a_signed_request_gets_a_piece_of_the_log(address: str, data: Path, settings: Any) -> None:
    path = files.log_path(data, 7, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(range(256)))

    log = log_of(address, settings.CONFIG.node)

    assert log.read(250, 3).data == bytes((250, 251, 252))
    assert log.tail(2).data == bytes((254, 255))
    assert log.size() == 256


def test_other_hosts_are_asked_without_the_proxy_of_the_environment(
    address: str, data: Path, settings: Any
) -> None:
    """In a process of its own, because the environment is read at its start."""
    path = files.log_path(data, 7, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"text")
    ticket = log_of(address, settings.CONFIG.node).ticket(0, 10)
    program = (
        "from scheduler.execution.probes import RemoteLog\n"
        f"log = RemoteLog('gpubox', {address!r}, 7, 1, lambda offset, limit: {ticket!r})\n"
        "print(log.read(0, 10).data.decode())"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": ""},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip

    assert ran.stdout == "text\n", ran.stderr


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/jobs/7/", 404),
        ("/internal/log/guess/", 403),
        ("/internal/log/%2e%2e/", 404),
        ("/internal/log/" + "a" * 3000 + "/", 404),
    ],
)
def test_nothing_else_is_served(address: str, data: Path, path: str, status: int) -> None:
    assert httpx.get(f"{address}{path}").status_code == status


def test_a_ticket_of_another_host_is_refused(address: str, data: Path) -> None:
    ticket = log_of(address, "another").ticket(0, 10)

    assert httpx.get(f"{address}/internal/log/{ticket}/").status_code == 404


def test_clients_that_send_nothing_are_bounded_and_dropped(
    address: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_server.LogHandler, "timeout", 0.5)
    port = int(address.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
    for connection in silent:
        connection.settimeout(LONGEST_S)
        assert connection.recv(1) == b""
        connection.close()

    assert httpx.get(f"{address}/").status_code == 404


def test_clients_that_send_a_byte_now_and_then_are_dropped(
    address: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_server, "WHOLE_S", 0.6)
    port = int(address.rpartition(":")[2])
    watch = Stopwatch()
    with socket.create_connection(("127.0.0.1", port)) as slow, suppress(OSError):
        while watch.seconds < LONGEST_S:
            slow.sendall(b"G")
            time.sleep(0.1)

    assert watch.seconds < LONGEST_S
