"""Facts: a process of the machine and the CPU time that it took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProcess:
    """cpu_s: in all since it started. user None = an account without a name."""

    pid: int
    start_ticks: int
    cpu_s: float
    uid: int
    user: str | None = None
    program: str = ""
    session: int = 0
    parent: int = 0
