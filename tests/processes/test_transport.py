from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.pages.hub import FLOODING, MALFORMED
from tests.pace import LONGEST_S
from tests.processes.limited_server import BODY_S, HEAD_S, LARGE

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 4 * 1024**2
Connect = Callable[[], socket.socket]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of a real web process, and its log."""
    folder = tmp_path_factory.mktemp("web")
    log = folder / "log"
    listening = socket.create_server(("127.0.0.1", 0))
    environment = os.environ | {"GPUCOORD_DATA": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.processes.limited_server", str(listening.fileno())]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            pass_fds=[listening.fileno()],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
        )
    port = listening.getsockname()[1]
    listening.close()
    try:
        yield port, log
    finally:
        process.terminate()
        process.wait(LONGEST_S)


@pytest.fixture
def connect(server: tuple[int, Path]) -> Iterator[Connect]:
    with contextlib.ExitStack() as opened:

        def open_connection() -> socket.socket:
            address = ("127.0.0.1", server[0])
            return opened.enter_context(socket.create_connection(address, timeout=LONGEST_S))

        yield open_connection


def head(path: str = "/", *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next response."""
    with connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        size = 0
        while line := file.readline().strip().lower():
            if line.startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        return status, file.read(size)


def test_a_body_within_the_limit_arrives(connect: Connect) -> None:
    connection = connect()
    connection.sendall(head("/", f"Content-Length: {LIMIT}") + b"x" * LIMIT)

    assert answer(connection) == (200, str(LIMIT).encode())


def test_an_announced_body_over_the_limit_is_refused_before_it_is_sent(connect: Connect) -> None:
    connection = connect()
    connection.sendall(head("/login/", f"Content-Length: {LIMIT + 1}"))
    status, text = answer(connection)

    assert (status, text[:26]) == (413, b"The body is too large: at ")


def test_a_client_that_waits_for_100_continue_is_refused_at_once(connect: Connect) -> None:
    connection = connect()
    connection.sendall(head("/", f"Content-Length: {LIMIT + 1}", "Expect: 100-continue"))

    assert answer(connection)[0] == 413


def test_the_api_refuses_a_large_body_as_json(connect: Connect) -> None:
    connection = connect()
    connection.sendall(head("/api/jobs/", "Content-Length: 300000000") + b"x" * 1_000_000)
    status, text = answer(connection)

    assert status == 413
    assert "too large" in json.loads(text)["detail"]


def test_a_chunked_body_over_the_limit_is_refused(connect: Connect) -> None:
    connection = connect()
    connection.sendall(head("/", "Transfer-Encoding: chunked"))
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for _ in range(LIMIT // 0x10000 + 1):
        connection.sendall(chunk)

    assert answer(connection)[0] == 413


def test_a_chunked_body_within_the_limit_arrives(connect: Connect) -> None:
    connection = connect()
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    connection.sendall(head("/", "Transfer-Encoding: chunked") + chunk * 3 + b"0\r\n\r\n")

    assert answer(connection) == (200, str(3 * 0x10000).encode())


def test_a_length_of_thousands_of_digits_is_refused(
    connect: Connect, server: tuple[int, Path]
) -> None:
    connection = connect()
    connection.sendall(head("/", "Content-Length: " + "9" * 9000))

    assert answer(connection)[0] == 413
    assert "Traceback" not in server[1].read_text()


def test_a_refused_connection_is_closed_although_the_client_goes_on_sending(
    connect: Connect,
) -> None:
    connection = connect()
    connection.sendall(head("/", "Content-Length: 300000000"))
    assert answer(connection)[0] == 413

    assert seconds_until_closed(connection, b"x" * 1000, every=0.05) < 5


def seconds_until_closed(connection: socket.socket, drip: bytes, every: float) -> float:
    """Send the drip again and again until the server has ended the connection."""
    started = time.monotonic()
    while time.monotonic() < started + 30:
        try:
            connection.sendall(drip)
            connection.settimeout(every)
            if not connection.recv(1000):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - started


def test_headers_that_arrive_byte_by_byte_end_the_connection(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")

    assert HEAD_S - 0.1 <= seconds_until_closed(connection, b"x", every=0.2) < HEAD_S + 8


def test_a_body_that_arrives_byte_by_byte_ends_the_connection(connect: Connect) -> None:
    connection = connect()
    connection.sendall(head("/", "Content-Length: 1000"))

    assert BODY_S - 0.1 <= seconds_until_closed(connection, b"x", every=0.2) < BODY_S + 8


def test_a_slow_client_is_told_so(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"GET / HT")

    assert answer(connection)[0] == 408


def test_the_rest_of_a_pipelined_request_must_arrive_in_time_too(connect: Connect) -> None:
    connection = connect()
    connection.sendall(head("/", "Content-Length: 1") + b"xGET / HT")
    assert answer(connection) == (200, b"1")

    assert seconds_until_closed(connection, b"x", every=0.2) < HEAD_S + 8


def test_a_connection_may_rest_between_requests(connect: Connect) -> None:
    connection = connect()
    for _ in range(2):
        connection.sendall(head("/", "Content-Length: 1") + b"x")
        assert answer(connection) == (200, b"1")
        time.sleep(HEAD_S + 0.3)


def test_half_open_connections_do_not_keep_others_waiting(connect: Connect) -> None:
    slow = [connect() for _ in range(100)]
    for connection in slow:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    connection = connect()
    connection.sendall(head("/", "Content-Length: 1") + b"x")

    assert answer(connection) == (200, b"1")
    assert [answer(each)[0] for each in slow] == [408] * 100


def upgraded(connection: socket.socket, path: str = "/") -> socket.socket:
    """Make the connection a WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
    connection.sendall(head(path, *lines, f"Sec-WebSocket-Key: {key}", method="GET"))
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1)
    assert received.startswith(b"HTTP/1.1 101")
    return connection


def frame(text: bytes) -> bytes:
    """A masked text frame of up to 65,535 bytes; the mask is zero."""
    size = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + text


def closing_code(connection: socket.socket) -> int:
    with connection.makefile("rb") as file:
        opcode, size = file.read(2)
        assert opcode == 0x88, "the server sends no close frame"
        return int.from_bytes(file.read(size)[:2], "big")


def test_a_websocket_outlives_the_limits_of_a_request(connect: Connect) -> None:
    connection = upgraded(connect())
    time.sleep(HEAD_S + BODY_S)
    connection.sendall(frame(b'{"ack": 1}'))
    connection.settimeout(0.5)

    with pytest.raises(TimeoutError):
        connection.recv(1)


def test_the_server_may_send_large_messages(connect: Connect) -> None:
    connection = upgraded(connect(), "/large")
    with connection.makefile("rb") as file:
        assert file.read(2) == b"\x81\x7f"
        assert int.from_bytes(file.read(8), "big") == LARGE
        assert len(file.read(LARGE)) == LARGE


def test_a_large_message_closes_the_websocket(connect: Connect) -> None:
    connection = upgraded(connect())
    connection.sendall(frame(b"x" * 5000))

    assert seconds_until_closed(connection, b"", every=0.1) < 5


def test_a_malformed_message_closes_the_websocket(
    connect: Connect, server: tuple[int, Path]
) -> None:
    connection = upgraded(connect())
    connection.sendall(frame(b'{"ack": 1e999}'))

    assert closing_code(connection) == MALFORMED
    assert "Traceback" not in server[1].read_text()


def test_a_flooding_websocket_is_closed_while_others_are_served(connect: Connect) -> None:
    connection = upgraded(connect())
    flood = frame(b'{"whole": true}') * 130_000

    def send() -> None:
        with contextlib.suppress(OSError):
            connection.sendall(flood)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    started = time.monotonic()
    other = connect()
    other.sendall(head("/", "Content-Length: 1") + b"x")
    assert answer(other) == (200, b"1")
    waited = time.monotonic() - started

    assert closing_code(connection) == FLOODING
    connection.close()
    sender.join(LONGEST_S)
    assert waited < 3
