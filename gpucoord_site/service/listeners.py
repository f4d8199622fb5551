"""The sockets of logins and of the model endpoint, and reports of those that can't listen."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from gpucoord_site.cli import local_login
from gpucoord_site.service.startup_checks import UnableToStart, bind
from monitor.journal.rows import events
from monitor.runtime.probes.service_state import ListenerState
from monitor.runtime.rows.extensions import part

LOOK_EVERY_S = 3.0
LOGIN_BACKLOG = 128
# The paths of all bound Unix sockets, also of those that do not listen yet.
BOUND = Path("/proc/net/unix")


class LoginListener:
    """The Unix socket of logins by OS account (cli/local_login.py), open to all accounts.

    `address`: the REST API for local clients. `problem`: why it does not listen; it is tried again.
    """

    def __init__(self, port: int, address: str) -> None:
        self.path = _login_path(port)
        self.address = address
        self.listening: socket.socket | None = None
        self.problem = ""
        self._identity: tuple[int, int] | None = None
        self._looked_t = -LOOK_EVERY_S

    def look(self) -> bool:
        """Every LOOK_EVERY_S: listen if it does not. True: there is a new socket."""
        now = time.monotonic()
        if now - self._looked_t < LOOK_EVERY_S or self._is_there():
            return False
        self._looked_t = now
        self.close()
        try:
            self.listening = _bound(self.path)
        except OSError as error:
            reason = error.strerror or error
            self.problem = f"Logins by OS account are not possible ({reason}). Users need tokens."
            return False
        self._identity, self.problem = _identity(self.path), ""
        return True

    def _is_there(self) -> bool:
        """Whether it listens, and its name still leads to it: old files in /tmp are removed."""
        return self.listening is not None and _identity(self.path) == self._identity

    def close(self) -> None:
        """In this process."""
        if self.listening is not None:
            self.listening.close()
            self.listening = None

    def remove(self) -> None:
        """Close it and take the name away, which may be another service's by now."""
        if self._is_there():
            with suppress(OSError):
                self.path.unlink()
        self.close()


def remove_stale_sockets() -> int:
    """Remove login sockets that killed services of this account left. Returns how many."""
    count = 0
    for folder, name in (
        (local_login.SYSTEM_FOLDER, "login-*.sock"),
        (local_login.SHARED_FOLDER, "gpucoord-login-*.sock"),
    ):
        for path in folder.glob(name):
            with suppress(OSError):
                if _is_stale(path):
                    path.unlink()
                    count += 1
    return count


def _is_stale(path: Path) -> bool:
    """A socket of this account to which no process is bound."""
    status = path.lstat()
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        return False
    # Another service may have bound it a moment ago, and not listen yet.
    bound = BOUND.read_text(errors="replace").splitlines()
    return not any(line.endswith(f" {path}") for line in bound) and not _answers(path)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _bound(path: Path) -> socket.socket:
    """Raises OSError. What an earlier service left under the path is replaced."""
    if _answers(path):
        raise OSError(errno.EADDRINUSE, f"another process listens on {path}")
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        # The umask must not matter.
        path.chmod(0o666)
        listening.listen(LOGIN_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _login_path(port: int) -> Path:
    """In /run where this account may write there; only root can have made that folder."""
    folder = local_login.SYSTEM_FOLDER
    if os.geteuid() == 0:
        folder.mkdir(exist_ok=True)
    try:
        owner = folder.stat().st_uid
    except OSError:
        return local_login.shared_path(port)
    if owner == os.geteuid():
        # All accounts log in there, whatever the umask of the service is.
        folder.chmod(0o755)
        return local_login.system_path(port)
    return local_login.shared_path(port)


class EndpointSocket:
    """The socket of the endpoint for language models, and whether it is needed.

    The supervisor holds it.
    """

    def __init__(self, host: str, web_port: int) -> None:
        self._host = host
        self._port = settings.CONFIG.endpoint_port(web_port)
        self.listening: socket.socket | None = None
        self._looked_t = -LOOK_EVERY_S
        self.problem = ""
        self.is_needed = False

    @property
    def port(self) -> int | None:
        """None: it does not listen."""
        return None if self.listening is None else int(self.listening.getsockname()[1])

    def look(self) -> None:
        """Every LOOK_EVERY_S: whether there is a model service; listen while there is one."""
        now = time.monotonic()
        if now - self._looked_t < LOOK_EVERY_S:
            return
        self._looked_t = now
        exists = part("scheduler.language_models.model_proxy.rows:exists")
        self.is_needed = exists is not None and exists()
        if self.is_needed and self.listening is None:
            self._bind()
        elif not self.is_needed:
            # Clients are refused; they would wait for a process that does not run.
            self.close()

    def _bind(self) -> None:
        try:
            self.listening = bind(self._host, self._port, "models_port")
            self.problem = ""
        except UnableToStart as error:
            self.problem = f"The endpoint for language models can't listen: {error}"

    def close(self) -> None:
        """Stop listening in this process."""
        if self.listening is not None:
            self.listening.close()
            self.listening = None


class ListenerReport:
    """Events of listeners: one when it can't listen, and one when it can again."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._reported: dict[str, str] = {}

    def report(self, listeners: Iterable[ListenerState]) -> None:
        """Raises DatabaseError; then the same is reported at the next call."""
        for listener in listeners:
            before = self._reported.get(listener.name, "")
            if listener.problem == before:
                continue
            text = listener.problem or f"The listener {listener.name} works: {listener.address}"
            severity = "error" if listener.problem else "info"
            with transaction.atomic():
                events.add(
                    "LISTENER_UNUSABLE" if listener.problem else "LISTENER_USABLE",
                    text,
                    now=timezone.now(),
                    severity=severity,
                    host=self._host,
                )
            self._reported[listener.name] = listener.problem
