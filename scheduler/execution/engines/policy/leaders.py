"""Policy: whether a process that a job of another engine reports as its own belongs to it.

The account of the job can write the report. Therefore only what the kernel says of the process
counts: its account, and its cgroup where the engine uses cgroups.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.facts.accounts import is_person
from monitor.owners.identity.policy import job_cgroup_of, session_uid


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedProcess:
    """A process as the kernel of its node describes it.

    uid: its real uid, None = unknown. cgroup: text of /proc/PID/cgroup. has_job_cgroup: the engine
    has made a cgroup for the job on this node.
    """

    uid: int | None
    cgroup: str
    has_job_cgroup: bool


def refusal_of(process: ReportedProcess, uid: int, ref: str) -> str:
    """Why it is not a process of Slurm's job `ref`, which runs as `uid`; "" = it can be one."""
    if process.uid is None:
        return "its account cannot be read"
    if process.uid != uid:
        return f"it runs as uid {process.uid}, and the job as uid {uid}"
    # Users can make cgroups of any name in their own part of the tree.
    lines = [line for line in process.cgroup.splitlines() if session_uid(line) is None]
    paths = [path for path in map(job_cgroup_of, lines) if path]
    if any(path.endswith(f"/job_{ref}") for path in paths):
        return ""
    if paths:
        return f"it is in the cgroup {paths[0]}, which is not that of Slurm's job {ref}"
    if process.has_job_cgroup:
        return f"it is outside the cgroup of Slurm's job {ref}"
    if is_person(session_uid(process.cgroup) or 0):
        return "it belongs to a login session"
    return ""
