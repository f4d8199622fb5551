"""Runs a command in a terminal of its own, which `gpucoord shell` reaches by a Unix socket.

    python -I terminal.py FOLDER NAME SECONDS -- COMMAND [ARGUMENT ...]

The socket is FOLDER/NAME. A newer connection replaces the older one. Without a connection for
SECONDS, the terminal hangs up, and the command gets SIGHUP. A message to this program is one byte
(d: input, w: window size), its length in four bytes, and its content. Output is sent as it is.
Standard library only: it runs as the job's account.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import time
from contextlib import suppress
from typing import NoReturn

HEAD = struct.Struct("!cI")
WINDOW = struct.Struct("!HH")
INPUT, SIZE = b"d", b"w"
PIECE = 64 * 1024
# Unsent output: more makes the command wait while a client is connected.
MOST_UNSENT = 256 * 1024
# Output that is kept without a client.
MOST_KEPT = 64 * 1024
LONGEST_MESSAGE = 64 * 1024
HANG_UP_S = 5.0


class Terminal:
    """The terminal of one command and its only client."""

    def __init__(self, listener: socket.socket, pid: int, master: int, patience_s: float) -> None:
        self._listener = listener
        self._pid = pid
        self._master = master
        self._patience_s = patience_s
        self._client: socket.socket | None = None
        self._received = b""
        self._unsent = b""
        self._input = b""
        self._left_at = time.monotonic()
        self._hung_up_at: float | None = None
        self._is_open = True

    def run(self) -> int:
        """Serve until the command has ended and its output is sent. Returns its wait status."""
        while True:
            status = self._ended()
            if status is not None:
                self._drain()
                self._send_rest()
                return status
            self._watch_patience()
            self._step()

    def hang_up(self) -> None:
        """Send SIGHUP as a closed terminal does, and SIGKILL if the command stays."""
        if self._hung_up_at is None:
            self._hung_up_at = time.monotonic()
            self._signal(signal.SIGHUP)
            # A stopped shell hears SIGHUP only when it continues.
            self._signal(signal.SIGCONT)

    def _step(self) -> None:
        reads: list[socket.socket | int] = [self._listener]
        writes: list[socket.socket | int] = []
        limit = MOST_UNSENT if self._client is not None else sys.maxsize
        if self._is_open and len(self._unsent) < limit:
            reads.append(self._master)
        if self._client is not None:
            if len(self._input) < MOST_UNSENT:
                reads.append(self._client)
            if self._unsent:
                writes.append(self._client)
        if self._input and self._is_open:
            writes.append(self._master)
        readable, writable, _ = select.select(reads, writes, [], 0.5)
        if self._master in readable:
            self._read_terminal()
        if self._listener in readable:
            self._accept()
        if self._client is not None and self._client in readable:
            self._read_client(self._client)
        if self._client is not None and self._client in writable:
            self._write_client(self._client)
        if self._master in writable:
            self._write_terminal()

    def _read_terminal(self) -> bool:
        try:
            data = os.read(self._master, PIECE)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        # Linux reports EIO when no process has the terminal open.
        self._is_open = bool(data)
        self._unsent += data
        if self._client is None:
            self._unsent = self._unsent[-MOST_KEPT:]
        return bool(data)

    def _write_terminal(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._input = self._input[os.write(self._master, self._input) :]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", raw)[1] not in (0, os.getuid()):
            client.close()
            return
        if self._client is not None:
            self._client.close()
        client.setblocking(False)
        self._client, self._received = client, b""

    def _read_client(self, client: socket.socket) -> None:
        try:
            data = client.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose_client()
            return
        self._received += data
        while len(self._received) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._received)
            if length > LONGEST_MESSAGE:
                self._lose_client()
                return
            end = HEAD.size + length
            if len(self._received) < end:
                return
            self._hear(kind, self._received[HEAD.size : end])
            self._received = self._received[end:]

    def _hear(self, kind: bytes, content: bytes) -> None:
        if kind == INPUT:
            self._input += content
        elif kind == SIZE and len(content) == WINDOW.size:
            rows, columns = WINDOW.unpack(content)
            size = struct.pack("HHHH", rows, columns, 0, 0)
            with suppress(OSError):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _write_client(self, client: socket.socket) -> None:
        try:
            self._unsent = self._unsent[client.send(self._unsent[:PIECE]) :]
        except BlockingIOError:
            return
        except OSError:
            self._lose_client()

    def _lose_client(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client, self._received = None, b""
        self._left_at = time.monotonic()

    def _watch_patience(self) -> None:
        now = time.monotonic()
        if self._client is None and now - self._left_at > self._patience_s:
            self.hang_up()
        if self._hung_up_at is not None and now - self._hung_up_at > HANG_UP_S:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """To the command's session, and to the process group in the terminal's foreground."""
        with suppress(OSError):
            os.killpg(os.tcgetpgrp(self._master), number)
        with suppress(OSError):
            os.killpg(self._pid, number)

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        return status if pid else None

    def _drain(self) -> None:
        """Read the last output; a background process may keep the terminal open."""
        while self._is_open and len(self._unsent) < MOST_UNSENT and self._read_terminal():
            pass

    def _send_rest(self) -> None:
        if self._client is None:
            return
        self._client.settimeout(HANG_UP_S)
        with suppress(OSError):
            self._client.sendall(self._unsent)
        self._client.close()


def listen(folder: str, name: str) -> socket.socket:
    """Listen at FOLDER/NAME. The address of a Unix socket is short, so it names the folder's fd."""
    above = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=above)
    listener.bind(f"/proc/self/fd/{above}/{name}")
    listener.listen(4)
    listener.setblocking(False)
    os.close(above)
    return listener


def become(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"gpucoord: {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def main(argv: list[str]) -> int:
    folder, name, patience_s, _, *command = argv
    os.environ.setdefault("TERM", "xterm-256color")
    listener = listen(folder, name)
    pid, master = pty.fork()
    if pid == 0:
        listener.close()
        become(command)
    os.set_blocking(master, False)
    terminal = Terminal(listener, pid, master, float(patience_s))
    signal.signal(signal.SIGTERM, lambda *_: terminal.hang_up())
    status = terminal.run()
    with suppress(OSError):
        os.unlink(os.path.join(folder, name))  # noqa: PTH108, PTH118
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # A command that a signal ended has the exit code that a shell gives it.
    sys.exit(code if code >= 0 else 128 - code)
