"""Identity of a process: pid, start ticks and boot id, so that a reused pid is detected."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of this boot. `start_ticks` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int
    boot_id: str


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Start time of `pid` in ticks since boot; None if it has ended or is a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def cpu_ticks(pid: int) -> int | None:
    """CPU time that `pid` has used, in ticks; None if it has ended or is a zombie."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else None


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the program's name; empty if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    # The program's name, field 2, may contain spaces and parentheses.
    fields = stat.rpartition(b")")[2].split()
    return [] if fields[0] in (b"Z", b"X") else fields


def me() -> Identity:
    """This process. Not cached, because a fork changes the result."""
    pid = os.getpid()
    return Identity(pid, start_ticks(pid) or 0, boot_id())


def is_alive(pid: int | None, ticks: int | None, boot: str) -> bool:
    """Whether this exact process is still running on this host."""
    if pid is None or ticks is None or boot != boot_id():
        return False
    return start_ticks(pid) == ticks
