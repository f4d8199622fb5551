"""Ask the gpucoord service of this machine who you are: its Unix socket asks the kernel.

Standard library only. The socket's path follows from the port alone. The process that listens must
be root, this account, or the service account; a stranger could otherwise hand out their own token.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from monitor.facts import input_rules

# Only root can make a folder below /run, so its owner is the service account that root chose.
SYSTEM_FOLDER = Path("/run/gpucoord")
SHARED_FOLDER = Path("/tmp")  # noqa: S108 - the listener's identity is checked, not the path
SERVICE_ACCOUNT = "GPUCOORD_SERVICE_ACCOUNT"
ANSWER_S = 20.0
LONGEST_ANSWER = 64 * 1024
# Together longer than the time in which the service counts logins.
PAUSES_S = (0.3, 1.0, 2.0, 4.0, 4.0)
TOO_BUSY = b'{"error": "gpucoord closed the login socket; try again.", "retry": true}'


class LoginRefused(Exception):
    """The service gave no login; the message is a sentence."""


def system_path(port: int) -> Path:
    return SYSTEM_FOLDER / f"login-{port}.sock"


def shared_path(port: int) -> Path:
    """Where a service that can't write to SYSTEM_FOLDER listens."""
    return SHARED_FOLDER / f"gpucoord-login-{port}.sock"


def local_port(url: str) -> int | None:
    """The port of a loopback URL; None: the server is, or may be, on another machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https"):
        return None
    default = 443 if parts.scheme == "https" else 80
    return (default if port is None else port) if _is_loopback(host) else None


def ask(url: str, request: str) -> dict[str, Any] | None:
    """The answer of the local service to `token` or `link`; None: it has no such socket.

    Raises LoginRefused.
    """
    port = local_port(url)
    if port is None:
        return None
    for seconds in (*PAUSES_S, None):
        answer = _ask_once(port, request)
        if answer is None or "error" not in answer:
            return answer
        if not answer.get("retry") or seconds is None:
            raise LoginRefused(str(answer["error"])[:1000])
        time.sleep(seconds)
    return None


def _ask_once(port: int, request: str) -> dict[str, Any] | None:
    for path in (system_path(port), shared_path(port)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            try:
                connection.connect(str(path))
            except OSError:
                continue
            _check_listener(connection, path)
            return _exchange(connection, request, path)
    return None


def _exchange(connection: socket.socket, request: str, path: Path) -> dict[str, Any]:
    data = b""
    try:
        # A service that has too much to do answers and closes before it has read the request.
        with suppress(BrokenPipeError):
            connection.sendall(request.encode() + b"\n")
        while len(data) <= LONGEST_ANSWER and (part := connection.recv(LONGEST_ANSWER)):
            data += part
    except ConnectionResetError:
        data = data or TOO_BUSY
    except OSError as error:
        raise LoginRefused(f"The login socket {path} does not answer ({error}).") from None
    try:
        answer = input_rules.parse_json(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise LoginRefused(f"The login socket {path} did not answer as gpucoord does.")
    return answer


def _check_listener(connection: socket.socket, path: Path) -> None:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    check_uids({struct.unpack("3i", raw)[1]}, str(path))


def check_uids(uids: Iterable[int], place: str) -> None:
    """Raises LoginRefused if one of them, the accounts that listen at `place`, is a stranger's."""
    if strangers := set(uids) - trusted_uids():
        raise LoginRefused(
            f"The process that listens on {place} runs as uid {min(strangers)}, which is neither"
            f" root nor the service account. If gpucoord runs as that account, set"
            f" {SERVICE_ACCOUNT} to its name; else tell an operator."
        )


def trusted_uids() -> set[int]:
    """The accounts whose listener is believed."""
    uids = {0, os.geteuid()}
    with suppress(OSError):
        uids.add(SYSTEM_FOLDER.stat().st_uid)
    if name := os.environ.get(SERVICE_ACCOUNT):
        import pwd

        try:
            uids.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise LoginRefused(f"{SERVICE_ACCOUNT}: there is no account {name!r} here.") from None
    return uids


def _is_loopback(host: str) -> bool:
    """By its text: names other than localhost are not looked up."""
    is_ipv4 = host.count(".") == 3 and host.replace(".", "").isdigit()
    return host in ("localhost", "::1") or (is_ipv4 and host.startswith("127."))
