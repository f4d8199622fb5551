"""The terminal of `gpucoord shell`: this terminal in raw mode, connected by a WebSocket.

The messages are described in scheduler/terminals/consumers.py.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from gpucoord_site.cli.client import Client, NotReachable, RequestFailed, connected
from monitor.facts import input_rules
from monitor.facts.input_rules import escaped

ENDED, NOT_RUNNING = 4410, 4409
# From these a new connection does not help.
REFUSED = {4401, 4403, 4404, 4412, 4429}
STDIN, STDOUT = 0, 1
PIECE = 4096
ACKNOWLEDGE_EVERY = 32 * 1024
MOST_UNCONFIRMED = 64 * 1024
OPEN_TIMEOUT_S = 30.0
LARGEST_MESSAGE = 1024 * 1024
NEEDS_WEBSOCKETS = "gpucoord shell needs the package websockets: pip install websockets"


class TerminalFailed(RequestFailed):
    """There is no connection to the terminal; the message is a sentence."""


class NotRunning(TerminalFailed):
    """The job does not run yet, or no longer."""


class Left(Exception):
    """The user left the terminal by ~. and the job goes on."""


def connect(client: Client, job_id: int) -> None:
    """Show the job's terminal until it ends.

    Raises Left, TerminalFailed, or NotReachable when the connection breaks.
    """
    try:
        from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
        from websockets.sync.client import connect as open_socket
        from websockets.typing import Origin
    except ImportError:
        raise TerminalFailed(NEEDS_WEBSOCKETS) from None
    address, origin = addresses(client.url, client.headers)
    try:
        with open_socket(
            f"{address}/ws/jobs/{job_id}/terminal/",
            sock=_proven(client.url),
            origin=Origin(origin),
            additional_headers=client.headers,
            compression=None,
            proxy=None,
            open_timeout=OPEN_TIMEOUT_S,
            max_size=LARGEST_MESSAGE,
        ) as connection:
            Session(connection).run()
    except ConnectionClosed as closed:
        code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
        if code == ENDED:
            return
        if code == NOT_RUNNING:
            raise NotRunning(reason) from None
        if code in REFUSED:
            raise TerminalFailed(reason or f"The server closed the terminal ({code}).") from None
        raise NotReachable(f"The connection to the terminal broke ({code}).") from None
    except InvalidStatus as error:
        status = error.response.status_code
        raise TerminalFailed(f"{client.url} refused the terminal (status {status}).") from None
    except (OSError, WebSocketException) as error:
        raise NotReachable(f"The terminal can't be reached ({error}).") from None


def _proven(url: str) -> socket.socket | None:
    """The connection that the token may be sent on. None: TLS proves the server."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return None
    return connected(parts.hostname or "", parts.port or 80, url)


def addresses(url: str, headers: dict[str, str]) -> tuple[str, str]:
    """The address of WebSockets, and the origin that the server expects."""
    parts = urlsplit(url)
    scheme = headers.get("X-Forwarded-Proto", parts.scheme)
    socket_scheme = "wss" if parts.scheme == "https" else "ws"
    return f"{socket_scheme}://{parts.netloc}{parts.path}", f"{scheme}://{parts.netloc}"


class Session:
    """Output is shown by this thread; another one sends the input."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._escape = Escape()
        self._sent = self._confirmed = 0
        self._may_send = threading.Condition()
        self._has_left = self._is_over = False
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> None:
        """Raises ConnectionClosed at the end, or Left."""
        sender = threading.Thread(target=self._send_all, daemon=True)
        with raw_terminal(), self._window_changes():
            sender.start()
            try:
                self._show_all()
            finally:
                self._stop(sender)
        if self._has_left:
            raise Left

    def _show_all(self) -> None:
        from websockets.exceptions import ConnectionClosed

        shown = acknowledged = 0
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, str):
                    self._hear(input_rules.parse_json(message))
                    continue
                write_all(STDOUT, message)
                shown += len(message)
                if shown - acknowledged >= ACKNOWLEDGE_EVERY:
                    acknowledged = shown
                    self._connection.send(json.dumps({"ack": shown}))
        except ConnectionClosed:
            if not self._has_left:
                raise

    def _hear(self, message: dict[str, Any]) -> None:
        if "input" in message:
            with self._may_send:
                self._confirmed = message["input"]
                self._may_send.notify()
        elif notice := message.get("notice"):
            write_all(STDOUT, f"\r\n\a[gpucoord] {escaped(notice)}\r\n".encode())

    def _send_all(self) -> None:
        """Until the user leaves, the connection breaks or the session is over."""
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed, OSError):
            self._send_size()
            while not self._is_over:
                ready, _, _ = select.select([STDIN, self._wake_read], [], [])
                if self._wake_read in ready:
                    os.read(self._wake_read, PIECE)
                    self._send_size()
                if STDIN in ready and not self._is_over:
                    self._send_input(os.read(STDIN, PIECE))
                if self._has_left:
                    self._connection.close()
                    return

    def _send_input(self, typed: bytes) -> None:
        data, self._has_left = self._escape.feed(typed) if typed else (b"", True)
        with self._may_send:
            while self._sent - self._confirmed > MOST_UNCONFIRMED and not self._is_over:
                self._may_send.wait(1.0)
        if data:
            self._sent += len(data)
            self._connection.send(data)

    def _send_size(self) -> None:
        # Not that of COLUMNS and LINES, which do not change with the window.
        size = os.get_terminal_size(STDOUT)
        self._connection.send(json.dumps({"size": [size.lines, size.columns]}))

    def _stop(self, sender: threading.Thread) -> None:
        self._is_over = True
        self._wake()
        sender.join(2.0)
        os.close(self._wake_write)
        if not sender.is_alive():
            os.close(self._wake_read)

    def _wake(self) -> None:
        os.write(self._wake_write, b"w")

    @contextmanager
    def _window_changes(self) -> Iterator[None]:
        before = signal.signal(signal.SIGWINCH, lambda *_: self._wake())
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)


class Escape:
    """Finds ~. at the beginning of a line, as ssh does; ~~ is a single ~."""

    def __init__(self) -> None:
        self._begins_line = True
        self._has_tilde = False

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """The bytes to send, and whether the user leaves."""
        send = bytearray()
        for byte in typed:
            char = bytes([byte])
            if self._has_tilde:
                self._has_tilde = False
                if char == b".":
                    return bytes(send), True
                send += b"~" if char == b"~" else b"~" + char
            elif char == b"~" and self._begins_line:
                self._has_tilde = True
                continue
            else:
                send += char
            self._begins_line = char in b"\r\n"
        return bytes(send), False


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Pass on each key, Ctrl-C too, and restore the terminal afterwards."""
    before = termios.tcgetattr(STDIN)
    # Input typed ahead is kept.
    tty.setraw(STDIN, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
        sys.stdout.flush()


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
