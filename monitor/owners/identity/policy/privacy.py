"""Visibility of processes and events: operators see all, users their own and their jobs'."""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.facts.readings import ProcessReading, Snapshot

# Events that end with an error message, which may name files of the owner or of the service.
_WITH_DETAILS = {
    "ALERT_FAILED",
    "ENFORCEMENT_REFUSED",
    "JOB_REQUEUED",
    "JOB_STOPPING",
    "LOOP_FAILED",
    "REPORT_FAILED",
}


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user who reads a page. An operator may see everything."""

    username: str
    operator: bool = False


def owns(process: ProcessReading, viewer: Viewer) -> bool:
    """Whether it is the viewer's own process or belongs to a job of theirs."""
    return viewer.username in (process.user, process.job_owner)


def redact(snapshot: Snapshot, viewer: Viewer) -> Snapshot:
    """The snapshot as `viewer` may see it; program and user of a process are visible to all."""
    if viewer.operator:
        return snapshot
    visible = tuple(p if owns(p, viewer) else replace(p, command=None) for p in snapshot.processes)
    return replace(snapshot, processes=visible)


def event_text(kind: str, text: str, owner: str, viewer: Viewer) -> str:
    """The text that `viewer` may read; details of faults are for operators and the owner."""
    if viewer.operator or kind not in _WITH_DETAILS or (owner and owner == viewer.username):
        return text
    return text.partition(": ")[0]
