"""Facts: process usage as the driver reports it, costs of driver calls, CPU time."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field


class UseSource(StrEnum):
    """How a process's share of a GPU is known, best first."""

    ACCOUNTING = "accounting"
    PROCESSES_INFO = "processes_info"
    PROCESS_UTILIZATION = "process_utilization"
    DEVICE = "device"
    UNKNOWN = "unknown"


class EndedProcess(Struct, frozen=True, kw_only=True):
    """Usage of an ended process since the previous sweep.

    `lived_s` is given when it came and went between two sweeps.
    """

    gpu_uuid: str
    pid: int
    busy_s: float
    source: UseSource
    lived_s: float | None = None
    peak_memory_bytes: int | None = None


class InstanceReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A MIG instance of a GPU. NVML reports its memory and processes, but no utilisation."""

    gpu_uuid: str
    uuid: str
    instance: int | None = None
    name: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None


class CallCost(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cost of one call of the driver: times of the newest calls, in milliseconds.

    `every`: asked at each so many sweeps; more than 1 while it is slow. `count` and `errors` are
    those of the process that samples.
    """

    call: str
    count: int
    p50_ms: float
    p99_ms: float
    errors: int = 0
    every: int = 1


class GpuMark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Up to where a GPU's processes have been counted, in the driver's own clock and counters.

    `cursor_us` is the greatest timestamp that the driver gave, `age_s` how long ago that was;
    `period_us` the driver's sampling period where it gives each sample; `allowance_s` how much of
    the GPU's work no process has been given yet; `accounts`: {pid: (start, samples, sum)};
    `is_unexplained`: at the last look the GPU worked more than the driver attributed to processes;
    `names_clients`: the driver has attributed work to a client of MPS.
    """

    cursor_us: int | None = None
    age_s: float = 0.0
    period_us: int | None = None
    allowance_s: float = 0.0
    accounts: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    is_unexplained: bool = False
    names_clients: bool = False


class CpuProcess(Struct, frozen=True, kw_only=True):
    """cpu_s: in all since it started. user None = an account without a name."""

    pid: int
    start_ticks: int
    cpu_s: float
    uid: int
    user: str | None = None
    program: str = ""
    session: int = 0
    parent: int = 0
