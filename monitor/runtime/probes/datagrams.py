"""Unix datagrams between the processes of one host: `<folder>/<name>.<pid>.sock`.

Standard library only, so that a job's runner can use it without Django. Sending never blocks or
raises; a datagram may be lost, so every waiter also polls.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


def send(folder: Path, name: str, payload: bytes = b"") -> int:
    """Send `payload` to every listener of `name`; returns the number of receivers."""
    try:
        with _reachable(folder) as root, _socket() as sender:
            # Quicker than a pattern: the runner of each job sends twice.
            listeners = [
                file
                for file in os.listdir(root)  # noqa: PTH208
                if file.startswith(f"{name}.") and file.endswith(".sock")
            ]
            return sum(_send_one(sender, f"{root}/{file}", payload) for file in listeners)
    except OSError:
        return 0


def _send_one(sender: socket.socket, path: str, payload: bytes) -> bool:
    try:
        sender.sendto(payload, path)
    except ConnectionRefusedError:
        # The process ended without removing its socket.
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        return False
    except OSError:
        # The queue is full: enough wake-ups are pending.
        return False
    return True


# The payload of a wake-up that may wait for others for a moment.
PATIENT = b"patient"


class Inbox:
    """A bound socket that other processes of this host send to by `name`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._socket = _socket()
        self._file = self._bind(name)

    def _bind(self, name: str) -> str:
        with _reachable(self._folder) as root:
            for turn in range(1000):
                file = f"{name}.{os.getpid()}{f'-{turn}' if turn else ''}.sock"
                if _is_in_use(root / file):
                    continue
                self._socket.bind(str(root / file))
                return file
        raise OSError(f"{name} has 1000 listeners in this process")

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> list[bytes]:
        """The payloads received since the last call, oldest first."""
        payloads: list[bytes] = []
        while True:
            try:
                payloads.append(self._socket.recv(65536))
            except BlockingIOError:
                return payloads

    def close(self) -> None:
        """Stop receiving; a second call does nothing."""
        if self._socket.fileno() < 0:
            return
        self._socket.close()
        with contextlib.suppress(OSError):
            (self._folder / self._file).unlink()


def _is_in_use(path: Path) -> bool:
    """Whether a listener of this process is bound there; a stale socket file is removed."""
    with _socket() as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return False
        except OSError:
            path.unlink()
            return False
    return True


def _socket() -> socket.socket:
    new_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    new_socket.setblocking(False)
    return new_socket


@contextlib.contextmanager
def _reachable(folder: Path) -> Iterator[Path]:
    """A short path to `folder`, because a socket address is limited to 107 bytes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
