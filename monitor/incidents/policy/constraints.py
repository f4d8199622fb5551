"""Scarce resources of a host: disk space, memory, CPU and GPU time, each with hysteresis.

Soft constraints delay starts, hard ones prevent all starts, others are only reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from monitor.facts.gpus import Condition
from monitor.facts.readings import DiskReading, GpuReading, HostReading, Snapshot
from monitor.facts.thresholds import percent, threshold

GIB = 1024**3
DISK, DATA_DISK, MEMORY = "disk_space", "data_disk", "host_memory"
MEMORY_USE, CPU, IO_WAIT, CPU_WAIT = "host_memory_use", "host_cpu", "io_pressure", "cpu_pressure"
THROTTLED = "gpu_throttled"


class ConstraintEffect(StrEnum):
    """Effect on starts: none · all except user-initiated jobs wait · all jobs wait."""

    NONE = "none"
    SOFT = "soft"
    HARD = "hard"


EFFECTS = {
    DISK: ConstraintEffect.NONE,
    THROTTLED: ConstraintEffect.NONE,
    MEMORY_USE: ConstraintEffect.SOFT,
    CPU: ConstraintEffect.SOFT,
    CPU_WAIT: ConstraintEffect.SOFT,
    IO_WAIT: ConstraintEffect.SOFT,
    DATA_DISK: ConstraintEffect.HARD,
    MEMORY: ConstraintEffect.HARD,
}


# Low disk space: opens below this free part in %, and closes above the second one.
DISK_FREE_PCT, DISK_FREE_AGAIN_PCT = 5.0, 7.0
# Low memory: the same of the host's memory. No job starts below the first one.
MEMORY_FREE_PCT, MEMORY_FREE_AGAIN_PCT = 5.0, 8.0
# The data folder has room for logs again with this many GiB more than the least.
DATA_MORE_GIB = 1.0
# Pressure ends below these parts of the time in %, or below the opening value if that is lower.
MEMORY_STALL_OVER_PCT, CPU_WAIT_OVER_PCT, IO_WAIT_OVER_PCT = 10.0, 50.0, 25.0
# The free part of a disk that counts as empty.
LARGEST_FREE_PART = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintPolicy:
    """Shortages of the host that delay or block job starts, with hysteresis."""

    # fmt: off
    data_free_gib: float = threshold(2.0, "No space for logs: opens below",
        unit="GiB", ge=0, le=100_000,
        help="Free space on the disk with gpucoord's data. No job starts below this value, and "
             "none until 1 GiB more is free. 0 = never.")
    memory_stall_pct: float = percent(20.0, "Memory stall: opens above",
        "Time in which all tasks waited for memory (PSI full, 10 s). No job starts above this "
        "value. 100 = never.")
    memory_busy_pct: float = percent(80.0, "High memory use: opens above",
        "Used host memory. Normal and background jobs wait. 100 = never.")
    memory_calm_pct: float = percent(75.0, "High memory use: closes below")
    cpu_busy_pct: float = percent(100.0, "High CPU use: opens above",
        "Mean of 30 s. Normal and background jobs wait. 100 = never.")
    cpu_calm_pct: float = percent(80.0, "High CPU use: closes below")
    cpu_wait_pct: float = percent(100.0, "CPU pressure: opens above",
        "Time in which some task waited for a CPU (PSI some, 10 s). 100 = never, the default on "
        "servers: harmless data loaders with two tasks per CPU already reach 99 %, and load "
        "outside the queue must not stop the queue.")
    io_wait_pct: float = percent(50.0, "I/O pressure: opens above",
        "Time in which all tasks waited for I/O (PSI full, 10 s). 100 = never.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        problems = {}
        for name in ("memory", "cpu"):
            if getattr(self, f"{name}_calm_pct") > getattr(self, f"{name}_busy_pct"):
                problems[f"{name}_calm_pct"] = "it must not be above the opening value"
        return problems


class Constraint(Struct, frozen=True):
    """A scarce resource. `kind` and `subject` together identify it."""

    kind: str
    subject: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        return (self.kind, self.subject)

    @property
    def effect(self) -> ConstraintEffect:
        return EFFECTS.get(self.kind, ConstraintEffect.NONE)


class Gauge(Struct, frozen=True):
    """The use of a resource in percent, with the two thresholds of its hysteresis.

    `label` is its name in log lines. value None = unknown.
    """

    kind: str
    label: str
    subject: str
    value: float | None
    opens: float
    closes: float

    def is_over(self, held: bool, lowered_by: float = 0.0) -> bool | None:
        """Whether the resource is scarce; `held`: whether it was before. None = unknown."""
        if self.value is None:
            return None
        return self.value > (self.closes if held else self.opens) - lowered_by


class Verdict(Struct, frozen=True):
    """The constraints that begin now, and the keys of those that end."""

    opened: tuple[Constraint, ...]
    closed: tuple[tuple[str, str], ...]


Finding = tuple[Constraint, bool | None]
Keys = frozenset[tuple[str, str]]


def judge(
    snapshot: Snapshot,
    data_folder: str,
    open_keys: Collection[tuple[str, str]],
    policy: ConstraintPolicy,
    cpu_pct: float | None = None,
) -> Verdict:
    """Changes of the open constraints.

    Unknown values change nothing; a resource that is gone is closed.

    `cpu_pct`: the mean of the last half minute.
    """
    held = frozenset(open_keys)
    opened: list[Constraint] = []
    still: set[tuple[str, str]] = set()
    for constraint, short in _findings(snapshot, data_folder, held, policy, cpu_pct):
        if short is None:
            still |= {constraint.key} & held
        elif short:
            still.add(constraint.key)
            if constraint.key not in held:
                opened.append(constraint)
    return Verdict(tuple(opened), tuple(sorted(held - still)))


def gauges(host: HostReading, policy: ConstraintPolicy, cpu_pct: float | None) -> tuple[Gauge, ...]:
    """The resources whose use delays starts."""
    memory = memory_used_pct(host)
    p, stall = policy, host.pressure
    all_gauges = (
        Gauge(MEMORY_USE, "memory", "memory", memory, p.memory_busy_pct, p.memory_calm_pct),
        Gauge(CPU, "cpu", "CPUs", cpu_pct, p.cpu_busy_pct, p.cpu_calm_pct),
        Gauge(
            CPU_WAIT, "psi_cpu", "waiting for a CPU", stall.cpu_some_pct, p.cpu_wait_pct,
            min(p.cpu_wait_pct, CPU_WAIT_OVER_PCT),
        ),
        Gauge(
            IO_WAIT, "psi_io", "waiting for disks", stall.io_full_pct, p.io_wait_pct,
            min(p.io_wait_pct, IO_WAIT_OVER_PCT),
        ),
    )  # fmt: skip
    return tuple(gauge for gauge in all_gauges if gauge.opens < 100)


def memory_used_pct(host: HostReading) -> float | None:
    """Percent of the usable memory; None = unknown."""
    total, free = host.memory_total_bytes, host.memory_available_bytes
    return 100 * (total - free) / total if total and free is not None else None


def _findings(
    snapshot: Snapshot,
    data_folder: str,
    held: Keys,
    policy: ConstraintPolicy,
    cpu_pct: float | None,
) -> Iterator[Finding]:
    data_mount = mount_of(data_folder, snapshot.host.disks)
    for disk in snapshot.host.disks:
        yield _disk(disk, disk.mount == data_mount, held)
        if disk.mount == data_mount:
            yield _data_disk(disk, held, policy)
    yield _memory(snapshot.host, (MEMORY, "") in held, policy)
    for gauge in gauges(snapshot.host, policy, cpu_pct):
        text = f"The host is busy: {gauge.subject} {gauge.value or 0:.0f} %."
        yield Constraint(gauge.kind, "", text), gauge.is_over((gauge.kind, "") in held)
    for gpu in snapshot.gpus:
        yield _throttled(gpu)


def mount_of(folder: str, disks: Collection[DiskReading]) -> str | None:
    """The mount point of `folder`: the longest one that leads to it."""
    inside = f"{folder.rstrip('/')}/"
    above = [disk.mount for disk in disks if inside.startswith(f"{disk.mount.rstrip('/')}/")]
    return max(above, key=len, default=None)


def _disk(disk: DiskReading, holds_data: bool, held: Keys) -> Finding:
    least = DISK_FREE_AGAIN_PCT if (DISK, disk.mount) in held else DISK_FREE_PCT
    place = f"{disk.mount} (gpucoord's data)" if holds_data else disk.mount
    text = f"Disk space is low: {place} has {_left(disk)} left."
    short = None if disk.used_pct is None else disk.used_pct > 100 - least
    return Constraint(DISK, disk.mount, text), short


def _data_disk(disk: DiskReading, held: Keys, policy: ConstraintPolicy) -> Finding:
    """The disk of the data folder. It counts whatever its size, for logs and results."""
    opens = policy.data_free_gib * GIB
    closes = opens + DATA_MORE_GIB * GIB if opens else 0.0
    # Jobs start again on an empty disk that is smaller than that.
    closes = min(closes, max(opens, LARGEST_FREE_PART * disk.total_bytes))
    is_held = (DATA_DISK, disk.mount) in held
    text = (
        f"No room for logs: {disk.mount} (gpucoord's data) has {_left(disk)} left."
        f" Jobs start when {closes / GIB:.1f} GiB are free."
    )
    short = disk.free_bytes < (closes if is_held else opens) if disk.total_bytes else None
    return Constraint(DATA_DISK, disk.mount, text), short


def _left(disk: DiskReading) -> str:
    return f"{disk.free_bytes / GIB:.1f} of {disk.total_bytes / GIB:.1f} GiB"


def _memory(host: HostReading, held: bool, policy: ConstraintPolicy) -> Finding:
    total, free = host.memory_total_bytes, host.memory_available_bytes
    stall = host.pressure.memory_full_pct
    checks: list[bool] = []
    why = ""
    if total and free is not None:
        least = MEMORY_FREE_AGAIN_PCT if held else MEMORY_FREE_PCT
        checks.append(100 * free / total < least)
        why += f" {free / GIB:.1f} of {total / GIB:.1f} GiB are available."
    if stall is not None:
        most = policy.memory_stall_pct
        checks.append(stall > (min(most, MEMORY_STALL_OVER_PCT) if held else most))
        why += f" All tasks waited for memory {stall:.0f} % of the time."
    text = f"The host is short of memory.{why}"
    return Constraint(MEMORY, "", text), any(checks) if checks else None


def _throttled(gpu: GpuReading) -> Finding:
    """Throttled GPUs are reported by GPU health, with thresholds of their own."""
    has_condition = gpu.condition is not None
    text = f"GPU {gpu.index} is throttled. {gpu.condition_reason or ''}".strip()
    slowed = gpu.condition is Condition.THROTTLED if has_condition else None
    return Constraint(THROTTLED, gpu.uuid, text), slowed
