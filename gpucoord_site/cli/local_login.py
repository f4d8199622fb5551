"""Logins on this machine: by the socket of its gpucoord service, or by a saved token.

Standard library only. The service asks the kernel who you are. The path of its socket follows from
the port alone. The process that listens must be root, this account, or the service account; a
stranger could otherwise hand out their own token.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpucoord_site.config.file import default_data_folder
from monitor.facts import input_rules

# Only root can make a folder below /run, so its owner is the service account that root chose.
SYSTEM_FOLDER = Path("/run/gpucoord")
SHARED_FOLDER = Path("/tmp")  # noqa: S108 - the listener's identity is checked, not the path
SERVICE_ACCOUNT = "GPUCOORD_SERVICE_ACCOUNT"
ANSWER_S = 20.0
LONGEST_ANSWER = 64 * 1024
# Together longer than the time in which the service counts logins.
PAUSES_S = (0.3, 1.0, 2.0, 4.0, 4.0)
# As monitor/runtime/probes/service_state.py writes it, which clients do not have.
STATE = Path("run/service.json")
LISTENS_S = 1.0
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


# The services that run on this machine, by their login sockets and the data folder.
#
# This only finds addresses. Before a token is sent, `client.prove` and `ask` check which account
# listens there.


def addresses() -> list[str]:
    """Addresses of the services that an account writes which the client trusts, by their port.

    GPUCOORD_DATA chooses the service that runs on that data folder. Sockets of other accounts are
    left out: they could otherwise keep users from the service.
    """
    by_port = {port: f"http://127.0.0.1:{port}" for port in _login_ports()}
    for address in of_data_folder():
        port = urlsplit(address).port or 0
        by_port.setdefault(port, address)
        if os.environ.get("GPUCOORD_DATA"):
            return [by_port[port]]
    return [by_port[port] for port in sorted(by_port)]


def _login_ports() -> Iterator[int]:
    trusted = trusted_uids()
    for folder, prefix in (
        (SYSTEM_FOLDER, "login-"),
        (SHARED_FOLDER, "gpucoord-login-"),
    ):
        for path in folder.glob(f"{prefix}*.sock"):
            number = re.fullmatch(r"(\d{1,5})\.sock", path.name.removeprefix(prefix))
            if number and _is_served(path, trusted):
                yield int(number[1])


def _is_served(path: Path, trusted: set[int]) -> bool:
    """Whether a process listens on this socket, which a trusted account made."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        status = path.lstat()
        if stat.S_ISSOCK(status.st_mode) and status.st_uid in trusted:
            probe.settimeout(LISTENS_S)
            probe.connect(str(path))
            return True
    return False


def of_data_folder() -> Iterator[str]:
    """Of the service on the data folder that this account's own service would use."""
    named = os.environ.get("GPUCOORD_DATA")
    path = (Path(named).expanduser() if named else default_data_folder()) / STATE
    with suppress(OSError, ValueError, KeyError, TypeError):
        if path.stat().st_uid not in {0, os.geteuid()}:
            return
        state = input_rules.parse_json(path.read_bytes())
        command = Path(f"/proc/{int(state['pid'])}/cmdline").read_bytes()
        if command.decode(errors="replace") == state["command"]:
            yield str(state["address"]).rstrip("/")


# The token file of a user, which only its owner can read.


class UnsafeToken(Exception):
    """Others could read the file."""


def token_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "gpucoord" / "token"


def save_token(text: str) -> Path:
    """Write the file as a whole, readable by its owner alone."""
    path = token_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"token.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, 0o600)
        file.write(text + "\n")
    part.replace(path)
    return path


def saved_token() -> str | None:
    """The saved token; None when there is none."""
    path = token_path()
    try:
        with path.open(encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise UnsafeToken(f"Others can read {path}; run: chmod 600 {path}")
            return file.read().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnsafeToken(f"{path} can't be read: {error}") from None
