"""Who a pid is, from /proc: owner, container, program, command, session and parents."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from monitor.policy.containers import container_of
from monitor.policy.owners import owner_uid
from monitor.readings import ProcessIdentity

_MAX_COMMAND_BYTES = 4096
_MAX_LINEAGE = 64


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says."""

    parent: int
    session: int
    start_ticks: int


class Identities:
    """Looks pids up and remembers them as long as they are asked for.

    A pid that now means another process (another start) is looked up anew. The lineage is that
    of the first look: a process whose parent has ended keeps its parents.
    """

    def __init__(self, boot_time: float, proc: Path = Path("/proc")) -> None:
        self._boot_time = boot_time
        self._proc = str(proc)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._known: dict[int, ProcessIdentity] = {}
        self._users: dict[int, str] = {}

    def of(self, pids: Iterable[int]) -> dict[int, ProcessIdentity]:
        """The identities of those pids that this machine's /proc knows."""
        found: dict[int, ProcessIdentity] = {}
        stats: dict[int, Stat | None] = {}
        for pid in set(pids):
            stat = stats[pid] = self._stat(pid)
            if stat is None:
                continue
            known = self._known.get(pid)
            if known is not None and known.start_ticks == stat.start_ticks:
                found[pid] = known
            else:
                found[pid] = self._look_up(pid, stat, stats)
        self._known = found
        return dict(found)

    def _look_up(self, pid: int, stat: Stat, stats: dict[int, Stat | None]) -> ProcessIdentity:
        uid = self._uid(pid)
        command = self._command(pid)
        container = container_of((self._read(pid, "cgroup", 8192) or b"").decode(errors="replace"))
        owner = owner_uid(uid, self._login_uid(pid), container)
        born = self._boot_time + stat.start_ticks / self._ticks_per_s
        return ProcessIdentity(
            pid=pid,
            start_ticks=stat.start_ticks,
            created_at=datetime.fromtimestamp(round(born, 2), UTC),
            uid=uid,
            user=None if owner is None else self._user(owner),
            program=self._program(pid, command),
            command=command,
            session=stat.session,
            lineage=self._lineage(stat, stats),
            container=container,
        )

    def _stat(self, pid: int) -> Stat | None:
        text = self._read(pid, "stat", 1024)
        if text is None:
            return None
        # The program's name, field 2, may hold spaces and brackets.
        fields = text.rpartition(b")")[2].split()
        return Stat(int(fields[1]), int(fields[3]), int(fields[19]))

    def _lineage(self, stat: Stat, stats: dict[int, Stat | None]) -> tuple[int, ...]:
        pids: list[int] = []
        parent = stat.parent
        while parent > 0 and len(pids) < _MAX_LINEAGE:
            pids.append(parent)
            if parent not in stats:
                stats[parent] = self._stat(parent)
            above = stats[parent]
            parent = above.parent if above else 0
        return tuple(pids)

    def _uid(self, pid: int) -> int | None:
        """The real user id; a process that changed its effective one still has its owner's."""
        text = self._read(pid, "status", 4096) or b""
        for line in text.split(b"\n"):
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
        return None

    def _login_uid(self, pid: int) -> int | None:
        """Who logged in to start it; the kernel keeps that across sudo and su."""
        text = (self._read(pid, "loginuid", 16) or b"").strip()
        return int(text) if text.isdigit() else None

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except (KeyError, OSError):
                self._users[uid] = f"uid {uid}"
        return self._users[uid]

    def _command(self, pid: int) -> tuple[str, ...] | None:
        text = self._read(pid, "cmdline", _MAX_COMMAND_BYTES)
        if not text:
            return None
        return tuple(part.decode(errors="replace") for part in text.rstrip(b"\0").split(b"\0"))

    def _program(self, pid: int, command: tuple[str, ...] | None) -> str | None:
        """The kernel's name for it, in full where the kernel cut it; never an argument."""
        text = self._read(pid, "comm", 64)
        if text is None:
            return None
        name = text.decode(errors="replace").rstrip("\n")
        full = command[0].rsplit("/", 1)[-1] if command else ""
        return full if len(name) >= 15 and full.startswith(name) and " " not in full else name

    def _read(self, pid: int, name: str, size: int) -> bytes | None:
        try:
            fd = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(fd, size)
        except OSError:
            return None
        finally:
            os.close(fd)
