"""Who may see whose command lines: operators all, people their own and those of their jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.readings import ProcessReading, Snapshot


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. An operator may see everything."""

    username: str
    operator: bool = False


def owns(process: ProcessReading, viewer: Viewer) -> bool:
    """Whether it is the viewer's own process or belongs to a job of theirs."""
    return viewer.username in (process.user, process.job_owner)


def redact(snapshot: Snapshot, viewer: Viewer) -> Snapshot:
    """The snapshot as `viewer` may see it; program and user of a process stay for all."""
    if viewer.operator:
        return snapshot
    seen = tuple(p if owns(p, viewer) else replace(p, command=None) for p in snapshot.processes)
    return replace(snapshot, processes=seen)
