"""The gpucoord services that run on this machine, by their login sockets and the data folder.

This only finds addresses. Before a token is sent, `transport.prove` and `local_login.ask` check
which account listens there.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from gpucoord_site.cli import local_login
from gpucoord_site.config.file import default_data_folder
from monitor.facts import input_rules

# As monitor/runtime/probes/service_state.py writes it, which clients do not have.
STATE = Path("run/service.json")
ANSWER_S = 1.0


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
    trusted = local_login.trusted_uids()
    for folder, prefix in (
        (local_login.SYSTEM_FOLDER, "login-"),
        (local_login.SHARED_FOLDER, "gpucoord-login-"),
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
            probe.settimeout(ANSWER_S)
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
