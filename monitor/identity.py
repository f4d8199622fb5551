"""Who a process is: pid, start ticks and boot id, so that a reused pid is never mistaken."""

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
    """When `pid` started, in ticks since boot; None when it is gone or only a zombie is left."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The program's name, field 2, may hold spaces and brackets.
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def me() -> Identity:
    """This process; asked anew each time, as a fork changes the answer."""
    pid = os.getpid()
    return Identity(pid, start_ticks(pid) or 0, boot_id())


def is_alive(pid: int | None, ticks: int | None, boot: str) -> bool:
    """Whether that very process still runs on this machine."""
    if pid is None or ticks is None or boot != boot_id():
        return False
    return start_ticks(pid) == ticks
