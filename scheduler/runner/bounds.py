"""Edge: what keeps a job within its bounds, as the runner is told it in spec.json."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.runner.spec import _Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds(_Body):
    """Empty or None = not wanted, or not to be had here.

    gpus: indices whose lock files are held while the job runs, `alone` or shared, for the gpucoord
    `instance`. cgroup: the folders under which the job gets one of its own, or `scope`: "system" or
    "user", where systemd makes it. cpus, memory_bytes, pids: what all its processes get together.
    hidden: (major, minor) of the GPUs' device files that it can't open. share_pct: of the time, in
    periods of period_s, in which it may run. log_bytes: the longest log.
    """

    lock_folder: str = ""
    gpus: list[int] = field(default_factory=list)
    alone: bool = False
    instance: int | None = None
    cgroup: list[str] = field(default_factory=list)
    scope: str = ""
    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    hidden: list[list[int]] = field(default_factory=list)
    share_pct: int | None = None
    period_s: float = 0.5
    log_bytes: int = 0
