"""Who takes the CPUs: each process's CPU time, read from /proc."""

from __future__ import annotations

import os
import pwd
from functools import lru_cache
from pathlib import Path

from monitor.cpu_facts import CpuProcess

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_processes(proc: Path = PROC) -> tuple[CpuProcess, ...]:
    """All processes with the CPU seconds that they have taken so far; some ms for a thousand."""
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit():
            process = _read(folder, int(folder.name))
            if process is not None:
                found.append(process)
    return tuple(found)


def _read(folder: Path, pid: int) -> CpuProcess | None:
    """None: it has gone meanwhile."""
    try:
        text = (folder / "stat").read_text(errors="replace")
        uid = folder.stat().st_uid
    except OSError:
        return None
    # The name stands in parentheses, and may hold some itself.
    program = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return CpuProcess(
        pid=pid,
        start_ticks=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
        uid=uid,
        user=_name(uid),
        program=program,
        session=int(fields[3]),
        parent=int(fields[1]),
    )


@lru_cache(maxsize=256)
def _name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
