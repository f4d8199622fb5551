"""Policy: what a job's processes may take together, and when own jobs step back for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.formats import GIB
from monitor.readings import HostReading
from scheduler.jobs import NewJob, Refusal
from scheduler.units import size

# What a job needs to run at all.
LEAST_CPUS, LEAST_BYTES = 0.01, 16 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsPolicy:
    """What keeps own jobs within bounds, where this machine has the means."""

    cgroup: bool = field(
        default=True,
        metadata={
            "label": "A cgroup per job",
            "help": "Limits, an exact kill and a freezer; without it a job is its process tree.",
        },
    )
    cpus: float | None = field(
        default=None,
        metadata={
            "label": "CPUs per job",
            "help": "What all processes of a job get together; a job may ask for less.",
            "least": 0.01,
        },
    )
    memory_gib: float | None = field(
        default=None,
        metadata={
            "label": "Memory per job",
            "help": "Of the host; who takes more is killed. A job may ask for less.",
            "unit": "GiB",
            "least": 0.05,
        },
    )
    pids: int | None = field(
        default=32_768,
        metadata={
            "label": "Processes and threads per job",
            "help": "Keeps a job that forks without end from stopping the machine.",
            "least": 16,
        },
    )
    log_mib: int = field(
        default=1024,
        metadata={
            "label": "Longest log",
            "help": "Of one attempt. The job goes on; what it writes then is left out, but for the "
            "end. 0 = no limit.",
            "unit": "MiB",
            "least": 0,
            "most": 1024**2,
        },
    )
    hide_gpus: bool = field(
        default=True,
        metadata={
            "label": "Hide other GPUs",
            "help": "A job can't open GPUs that it was not given, whatever it sets.",
        },
    )
    cap_share: bool = field(
        default=True,
        metadata={
            "label": "Cap shares",
            "help": "A job that asked for a part of a GPU's time is paused for the rest of it.",
        },
    )
    period_s: float = field(
        default=1.0,
        metadata={
            "label": "Period of a cap",
            "help": "A job with 30 % runs for 0.3 of it. Should be longer than its steps.",
            "unit": "s",
            "least": 0.1,
            "most": 60,
        },
    )
    mps: bool = field(
        default=True,
        metadata={
            "label": "Use MPS for caps",
            "help": "Where NVIDIA's MPS daemon runs, it caps shares, and nothing is paused.",
        },
    )

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_gib is None else round(self.memory_gib * GIB)


def refusals(new: NewJob, policy: BoundsPolicy, hosts: Sequence[HostReading]) -> list[Refusal]:
    """More CPUs or memory than a job may have, or than any host has; too little to run at all."""
    cpus = _most(policy.cpus, [host.cpu_count for host in hosts])
    memory = _most(policy.memory_bytes, [host.memory_total_bytes for host in hosts])
    found = []
    if (asked := new.cpus) is not None and asked < LEAST_CPUS:
        found.append(Refusal(field="cpus", text=f"Nothing runs with {asked:g} CPUs."))
    elif asked is not None and cpus is not None and asked > cpus:
        text = f"You ask for {asked:g} CPUs; a job gets at most {cpus:g} here."
        found.append(Refusal(field="cpus", text=text))
    if (wants := new.memory_bytes) is not None and wants < LEAST_BYTES:
        text = "Nothing runs with so little host memory; write it like 16GiB."
        found.append(Refusal(field="memory", text=text))
    elif wants is not None and memory is not None and wants > memory:
        most = f"a job gets at most {size(int(memory))} here"
        text = f"You ask for {size(wants)} of host memory; {most}."
        found.append(Refusal(field="memory", text=text))
    return found


def least(asked: float | None, most: float | None) -> float | None:
    """What holds of both; None = no limit."""
    return min((value for value in (asked, most) if value is not None), default=None)


def _most(limit: float | None, hosts: Sequence[float | None]) -> float | None:
    """What a job can have on the largest host; None = nobody can tell."""
    known = [value for value in hosts if value is not None]
    largest = max(known) if known and len(known) == len(hosts) else None
    return least(largest, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class NicePolicy:
    """When own jobs get less of CPU and disk than everyone else, and get it back."""

    enabled: bool = field(
        default=True,
        metadata={"label": "Step back", "help": "Own jobs are nice while the machine is busy."},
    )
    nice: int = field(
        default=10,
        metadata={
            "label": "Niceness",
            "help": "Of own jobs, while the machine is busy.",
            "least": 1,
            "most": 19,
        },
    )
    idle_io: bool = field(
        default=True,
        metadata={
            "label": "Disk only when idle",
            "help": "Then own jobs read and write only when nobody else does.",
        },
    )
    busy_cpu_pct: float = field(
        default=90.0,
        metadata={
            "label": "Busy from",
            "help": "CPU of the whole machine.",
            "unit": "%",
            "least": 1,
            "most": 100,
        },
    )
    quiet_cpu_pct: float = field(
        default=75.0,
        metadata={
            "label": "Quiet below",
            "help": "Then they get back what they had.",
            "unit": "%",
            "least": 0,
            "most": 100,
        },
    )
    busy_io_pct: float = field(
        default=20.0,
        metadata={
            "label": "Disk busy from",
            "help": "Time in which something waited for the disk (PSI).",
            "unit": "%",
            "least": 1,
            "most": 100,
        },
    )

    def conflicts(self) -> dict[str, str]:
        """What contradicts itself, by field."""
        if self.quiet_cpu_pct >= self.busy_cpu_pct:
            return {"quiet_cpu_pct": "it must be below where busy begins"}
        return {}


def is_busy(
    cpu_pct: float | None, io_pct: float | None, *, was_busy: bool, policy: NicePolicy
) -> bool:
    """Whether own jobs are to step back. What is unknown changes nothing by itself."""
    if not policy.enabled:
        return False
    busy = [
        cpu_pct is not None and cpu_pct >= policy.busy_cpu_pct,
        io_pct is not None and io_pct >= policy.busy_io_pct,
    ]
    quiet = [
        cpu_pct is not None and cpu_pct < policy.quiet_cpu_pct,
        io_pct is None or io_pct < policy.busy_io_pct / 2,
    ]
    return any(busy) or (was_busy and not all(quiet))
