"""Edge: what the kernel of this node says of a process that a job of another engine reports."""

from __future__ import annotations

import pwd
from contextlib import suppress
from pathlib import Path

from monitor.runtime.probes.process_identity import start_ticks
from scheduler.execution.engines.policy.requests import ReportedProcess

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Where the plugins of Slurm for cgroup v2 and v1 make the cgroup of a job.
PLACES = (
    "system.slice/*slurmstepd.scope/job_{ref}",
    "*slurmstepd.scope/job_{ref}",
    "slurm*/uid_*/job_{ref}",
    "*/slurm*/uid_*/job_{ref}",
)
LONGEST = 65_536


def read_reported(pid: int, ticks: int, ref: str) -> ReportedProcess | None:
    """None: there is no such process, or not any more."""
    uid, cgroup = _real_uid(_text(pid, "status")), _text(pid, "cgroup")
    # All of it was read of this process only if it is still there.
    if start_ticks(pid) != ticks:
        return None
    return ReportedProcess(uid=uid, cgroup=cgroup, has_job_cgroup=has_job_cgroup(ref))


def has_job_cgroup(ref: str, root: Path = CGROUPS) -> bool:
    """Whether Slurm has made a cgroup for this job here."""
    return ref.isdecimal() and any(
        True for place in PLACES for _ in root.glob(place.format(ref=ref))
    )


def uid_of(account: str) -> int:
    """Of a name, or of a number for an account without a name. Raises LookupError."""
    try:
        return pwd.getpwnam(account).pw_uid
    except KeyError:
        if account.isdecimal():
            return int(account)
        raise LookupError(f"This host has no OS account {account!r}.") from None


def account_of(uid: int) -> str:
    """The name of an account, or its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _real_uid(status: str) -> int | None:
    for line in status.splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def _text(pid: int, name: str) -> str:
    with suppress(OSError), (PROC / str(pid) / name).open("rb") as file:
        return file.read(LONGEST).decode(errors="replace")
    return ""
