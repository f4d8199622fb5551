"""Identity of a pid, from /proc: owner, container, program, command, session and parents."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from monitor.facts.input_rules import escaped
from monitor.facts.readings import ProcessIdentity
from monitor.owners.identity.policy import owner_of
from monitor.owners.identity.probes.credentials import CredentialReader, account_ranges
from monitor.owners.identity.probes.runtimes import ContainerRuntimes

_MAX_COMMAND_BYTES = 4096
_MAX_LINEAGE = 64


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The used fields of /proc/PID/stat."""

    parent: int
    session: int
    start_ticks: int


class Identities:
    """Looks pids up and remembers them as long as they are asked for.

    A pid that now means another process (another start) is looked up anew. The lineage is that
    of the first look: a process whose parent has ended keeps its parents.
    """

    def __init__(
        self,
        boot_time: float,
        proc: Path = Path("/proc"),
        runtimes: ContainerRuntimes | None = None,
    ) -> None:
        self._boot_time = boot_time
        self._proc = str(proc)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._known: dict[int, ProcessIdentity] = {}
        self._users: dict[int, str] = {}
        self._open: set[int] = set()
        runtimes = ContainerRuntimes() if runtimes is None else runtimes
        self._credentials = CredentialReader(self._read, self._proc, runtimes=runtimes)
        self._ranges = account_ranges()
        # Processes that could not be identified at the last call.
        self.faults: dict[int, Exception] = {}

    def of(self, pids: Iterable[int]) -> dict[int, ProcessIdentity]:
        """The identities of those pids that this machine's /proc knows."""
        identities: dict[int, ProcessIdentity] = {}
        stats: dict[int, ProcessStat | None] = {}
        self.faults = {}
        for pid in set(pids):
            try:
                identity = self._identify(pid, stats)
            except Exception as error:
                # Unknown; the other processes are not affected.
                self.faults[pid] = error
            else:
                if identity is not None:
                    identities[pid] = identity
        self._known = identities
        self._open &= identities.keys()
        return dict(identities)

    def _identify(self, pid: int, stats: dict[int, ProcessStat | None]) -> ProcessIdentity | None:
        stat = stats[pid] = self._stat(pid)
        if stat is None:
            return None
        identity = self._known.get(pid)
        is_same = identity is not None and identity.start_ticks == stat.start_ticks
        if identity is not None and is_same and pid not in self._open:
            return identity
        return self._look_up(pid, stat, stats)

    def _look_up(
        self, pid: int, stat: ProcessStat, stats: dict[int, ProcessStat | None]
    ) -> ProcessIdentity:
        credentials = self._credentials.of(pid)
        # Until the runtime has answered, it is looked up anew.
        (self._open.discard if credentials.is_labelled_known else self._open.add)(pid)
        owner = owner_of(credentials, self._credentials.subordinate(), self._ranges)
        command = self._command(pid)
        born = self._boot_time + stat.start_ticks / self._ticks_per_s
        return ProcessIdentity(
            pid=pid,
            start_ticks=stat.start_ticks,
            created_at=datetime.fromtimestamp(round(born, 2), UTC),
            uid=credentials.uid,
            user=None if owner.uid is None else self._user(owner.uid),
            program=self._program(pid, command),
            command=command,
            session=stat.session,
            lineage=self._lineage(stat, stats),
            job_cgroup=credentials.job_cgroup,
            labelled_job=credentials.labelled_job,
            container=credentials.container,
            owner_source=owner.source,
        )

    def _stat(self, pid: int) -> ProcessStat | None:
        text = self._read(pid, "stat", 1024)
        if text is None:
            return None
        # The program's name, field 2, may hold spaces and brackets.
        fields = text.rpartition(b")")[2].split()
        return ProcessStat(int(fields[1]), int(fields[3]), int(fields[19]))

    def _lineage(self, stat: ProcessStat, stats: dict[int, ProcessStat | None]) -> tuple[int, ...]:
        pids: list[int] = []
        parent = stat.parent
        while parent > 0 and len(pids) < _MAX_LINEAGE:
            pids.append(parent)
            if parent not in stats:
                stats[parent] = self._stat(parent)
            above = stats[parent]
            parent = above.parent if above else 0
        return tuple(pids)

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
        """The kernel's name for it, in full where the kernel cut it; never an argument.

        A process chooses its name, which events, messages and terminals show.
        """
        text = self._read(pid, "comm", 64)
        if text is None:
            return None
        name = text.decode(errors="replace").rstrip("\n")
        full = command[0].rsplit("/", 1)[-1] if command else ""
        is_cut = len(name) >= 15 and full.startswith(name) and " " not in full
        return escaped(full if is_cut else name)

    def _read(self, pid: int | str, name: str, size: int) -> bytes | None:
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
