"""Edge: the process at the other end of a Unix socket, by the kernel and NSS. Never Django."""

from __future__ import annotations

import grp
import os
import pwd
import re
import socket
import struct
from contextlib import suppress
from pathlib import Path

from monitor.facts.accounts import Peer
from monitor.owners.identity.probes.credentials import CredentialReader

_CREDENTIALS = struct.Struct("3i")
# Linux 6.5; a handle of the very process that connected, also after its pid was used again.
SO_PEERPIDFD = 77
_LONGEST = 65_536
_MOST_PARENTS = 64
# Names of the processes above a job (scheduler/runner/guardian.py), as the kernel cuts them.
RUNNERS = {"gpucoord-guard", "gpucoord-runner"}
_JOB_MARK = b"GPUCOORD_NONCE="


def credentials(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected, or that listens."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


class PeerReader:
    """Describes peers; their groups only where the rule needs them, as LDAP can be slow."""

    def __init__(self, *, with_groups: bool = False, proc: Path = Path("/proc")) -> None:
        self._proc, self._with_groups = proc, with_groups
        self._credentials = CredentialReader(self._read, str(proc))

    def describe(self, connection: socket.socket) -> Peer:
        """The connected process. `problem` says what can't be read; nothing is guessed."""
        pid, uid = credentials(connection)
        if pid <= 0:
            return Peer(pid=pid, uid=uid, problem="it is in another pid namespace")
        handle = _pid_handle(connection)
        try:
            return self._of_process(pid, uid, handle)
        finally:
            if handle is not None:
                os.close(handle)

    def _of_process(self, pid: int, uid: int, handle: int | None) -> Peer:
        start = self._start_ticks(pid)
        credentials = self._credentials.of(pid)
        is_of_job = self._is_of_job(pid)
        name, groups = _account(uid, with_groups=self._with_groups)
        # All of it was read about one process only if that process is still there.
        is_same = start is not None and start == self._start_ticks(pid)
        if not is_same or (handle is not None and not _is_alive(handle)):
            return Peer(pid=pid, uid=uid, account=name, problem="it has ended")
        if credentials.uid is None:
            return Peer(pid=pid, uid=uid, account=name, problem="/proc does not show it")
        return Peer(
            pid=pid,
            uid=uid,
            account=name,
            groups=groups,
            container=credentials.container,
            is_in_host_namespace=credentials.is_in_host_namespace,
            is_service=uid == os.geteuid(),
            is_of_job=is_of_job,
        )

    def _is_of_job(self, pid: int) -> bool:
        """By its parents, its environment, or the mark that Landlock leaves for good."""
        if _JOB_MARK in (self._read(pid, "environ", _LONGEST) or b""):
            return True
        if os.geteuid() != 0 and self._has_no_new_privileges(pid):
            return True
        depth = 0
        parent: int | None = pid
        while parent is not None and parent > 1 and depth < _MOST_PARENTS:
            if self._name(parent) in RUNNERS:
                return True
            parent, depth = self._parent(parent), depth + 1
        return False

    def _has_no_new_privileges(self, pid: int) -> bool:
        status = self._read(pid, "status", _LONGEST) or b""
        return re.search(rb"^NoNewPrivs:\s*1$", status, re.MULTILINE) is not None

    def _name(self, pid: int) -> str:
        return (self._read(pid, "comm", 64) or b"").decode(errors="replace").strip()

    def _parent(self, pid: int) -> int | None:
        fields = self._stat(pid)
        return int(fields[1]) if len(fields) > 1 else None

    def _start_ticks(self, pid: int) -> int | None:
        fields = self._stat(pid)
        return int(fields[19]) if len(fields) > 19 else None

    def _stat(self, pid: int) -> list[bytes]:
        return (self._read(pid, "stat", 4096) or b"").rpartition(b")")[2].split()

    def _read(self, pid: int | str, name: str, size: int) -> bytes | None:
        with suppress(OSError), (self._proc / str(pid) / name).open("rb") as file:
            return file.read(size)
        return None


def _pid_handle(connection: socket.socket) -> int | None:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return None


def _is_alive(handle: int) -> bool:
    """Whether the process of this pidfd has not ended and been collected."""
    with suppress(OSError):
        text = Path(f"/proc/self/fdinfo/{handle}").read_text()
        pid_line = re.search(r"^Pid:\s*(-?\d+)$", text, re.MULTILINE)
        return pid_line is not None and int(pid_line[1]) > 0
    return False


def _account(uid: int, *, with_groups: bool) -> tuple[str | None, frozenset[str]]:
    """The account's name and the names of its groups, by NSS. No account: (None, none)."""
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OSError):
        return None, frozenset()
    if entry.pw_uid != uid:
        return None, frozenset()
    names = set()
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid) if with_groups else ():
        with suppress(KeyError, OSError):
            names.add(grp.getgrgid(gid).gr_name)
    return entry.pw_name, frozenset(names)
