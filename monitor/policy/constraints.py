"""What a host is short of: disk space, memory, time; each with hysteresis.

Some only make starts wait (soft), some let nothing start at all (hard), some are worth knowing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.health import Condition
from monitor.readings import DiskReading, GpuReading, HostReading, Snapshot

GIB = 1024**3
DISK, DATA_DISK, MEMORY = "disk_space", "data_disk", "host_memory"
MEMORY_USE, CPU, IO_WAIT, CPU_WAIT = "host_memory_use", "host_cpu", "io_pressure", "cpu_pressure"
THROTTLED = "gpu_throttled"
PCT = {"unit": "%", "least": 0, "most": 100}


class Grip(StrEnum):
    """What a constraint does to starts: nothing · all but user-initiated jobs wait · all wait."""

    NONE = "none"
    SOFT = "soft"
    HARD = "hard"


GRIPS = {
    DISK: Grip.NONE,
    THROTTLED: Grip.NONE,
    MEMORY_USE: Grip.SOFT,
    CPU: Grip.SOFT,
    CPU_WAIT: Grip.SOFT,
    IO_WAIT: Grip.SOFT,
    DATA_DISK: Grip.HARD,
    MEMORY: Grip.HARD,
}


def _open(label: str, default: float, help: str, **more: object) -> float:
    return field(default=default, metadata={"label": label, "help": help, **PCT, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintPolicy:
    """What opens a constraint, and what closes it again; in between it stays as it is."""

    disk_free_pct: float = _open("Disk is low below", 5.0, "Free space of any disk.")
    disk_free_again_pct: float = _open("… and no longer above", 7.0, "")
    data_free_gib: float = _open(
        "No room for logs below",
        2.0,
        "Free space of the disk that gpucoord's data is on: below that nothing starts.",
        unit="GiB",
        most=100_000,
    )
    data_free_again_gib: float = _open("… and enough above", 3.0, "", unit="GiB", most=100_000)
    memory_free_pct: float = _open(
        "Memory is short below", 5.0, "Available memory: below that nothing starts."
    )
    memory_free_again_pct: float = _open("… and no longer above", 8.0, "")
    memory_stall_pct: float = _open(
        "Memory is short above", 20.0, "Time in which all tasks waited for memory (PSI, 10 s)."
    )
    memory_stall_over_pct: float = _open("… and no longer below", 10.0, "")
    memory_busy_pct: float = _open(
        "Memory is busy above", 80.0, "Used memory: normal and background jobs wait. 100 = never."
    )
    memory_calm_pct: float = _open("… and calm below", 75.0, "")
    cpu_busy_pct: float = _open(
        "CPUs are busy above", 100.0, "Mean of 30 s: normal and background jobs wait. 100 = never."
    )
    cpu_calm_pct: float = _open("… and calm below", 80.0, "")
    cpu_wait_pct: float = _open(
        "Waiting for CPU above",
        100.0,
        "Time in which some task waited for a CPU (PSI, 10 s). 100 = never.",
    )
    cpu_wait_over_pct: float = _open("… and no longer below", 50.0, "")
    io_wait_pct: float = _open(
        "Waiting for disks above",
        50.0,
        "Time in which all tasks waited for input and output (PSI, 10 s). 100 = never.",
    )
    io_wait_over_pct: float = _open("… and no longer below", 25.0, "")

    def conflicts(self) -> dict[str, str]:
        """What closes a constraint must be on the right side of what opens it."""
        free = ("disk_free", "data_free", "memory_free")
        found = {}
        for name in free:
            unit = "gib" if name == "data_free" else "pct"
            if getattr(self, f"{name}_again_{unit}") < getattr(self, f"{name}_{unit}"):
                found[f"{name}_again_{unit}"] = "it must not be below what opens it."
        pairs = (
            ("memory_stall_pct", "memory_stall_over_pct"),
            ("memory_busy_pct", "memory_calm_pct"),
            ("cpu_busy_pct", "cpu_calm_pct"),
            ("cpu_wait_pct", "cpu_wait_over_pct"),
            ("io_wait_pct", "io_wait_over_pct"),
        )
        for opens, closes in pairs:
            if getattr(self, closes) > getattr(self, opens):
                found[closes] = "it must not be above what opens it."
        return found


@dataclass(frozen=True, slots=True)
class Constraint:
    """One thing in short supply. `kind` and `subject` together are its name."""

    kind: str
    subject: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        return (self.kind, self.subject)

    @property
    def grip(self) -> Grip:
        return GRIPS.get(self.kind, Grip.NONE)


@dataclass(frozen=True, slots=True)
class Gauge:
    """How busy one thing is, in percent, and between which two thresholds that changes.

    `label` is its name in log lines. value None = unknown.
    """

    kind: str
    label: str
    what: str
    value: float | None
    opens: float
    closes: float

    def is_over(self, held: bool, lowered_by: float = 0.0) -> bool | None:
        """Whether it is too busy; `held`: whether it was. None = unknown."""
        if self.value is None:
            return None
        return self.value > (self.closes if held else self.opens) - lowered_by


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which constraints begin now, and which keys end."""

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
    """What changes, given what is open. Unknown changes nothing; what is gone is closed.

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
    """What makes starts wait when there is too much of it."""
    memory = memory_used_pct(host)
    p, stall = policy, host.pressure
    found = (
        Gauge(MEMORY_USE, "memory", "memory", memory, p.memory_busy_pct, p.memory_calm_pct),
        Gauge(CPU, "cpu", "CPUs", cpu_pct, p.cpu_busy_pct, p.cpu_calm_pct),
        Gauge(
            CPU_WAIT, "psi_cpu", "waiting for a CPU", stall.cpu_some_pct, p.cpu_wait_pct,
            p.cpu_wait_over_pct,
        ),
        Gauge(
            IO_WAIT, "psi_io", "waiting for disks", stall.io_full_pct, p.io_wait_pct,
            p.io_wait_over_pct,
        ),
    )  # fmt: skip
    return tuple(gauge for gauge in found if gauge.opens < 100)


def memory_used_pct(host: HostReading) -> float | None:
    """Of what may be used; None = unknown."""
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
        yield _disk(disk, disk.mount == data_mount, held, policy)
        if disk.mount == data_mount:
            yield _data_disk(disk, held, policy)
    yield _memory(snapshot.host, (MEMORY, "") in held, policy)
    for gauge in gauges(snapshot.host, policy, cpu_pct):
        text = f"The host is busy: {gauge.what} {gauge.value or 0:.0f} %."
        yield Constraint(gauge.kind, "", text), gauge.is_over((gauge.kind, "") in held)
    for gpu in snapshot.gpus:
        yield _throttled(gpu)


def mount_of(folder: str, disks: Collection[DiskReading]) -> str | None:
    """The mount point that `folder` is on: the longest that leads to it."""
    inside = f"{folder.rstrip('/')}/"
    above = [disk.mount for disk in disks if inside.startswith(f"{disk.mount.rstrip('/')}/")]
    return max(above, key=len, default=None)


def _disk(disk: DiskReading, holds_data: bool, held: Keys, policy: ConstraintPolicy) -> Finding:
    least = policy.disk_free_again_pct if (DISK, disk.mount) in held else policy.disk_free_pct
    what = f"{disk.mount} (gpucoord's data)" if holds_data else disk.mount
    text = f"Disk space is low: {what} has {_left(disk)} left."
    short = 100 * disk.free_bytes / disk.total_bytes < least if disk.total_bytes else None
    return Constraint(DISK, disk.mount, text), short


def _data_disk(disk: DiskReading, held: Keys, policy: ConstraintPolicy) -> Finding:
    """Its size does not matter: logs and results must find room."""
    is_held = (DATA_DISK, disk.mount) in held
    least = policy.data_free_again_gib if is_held else policy.data_free_gib
    text = f"No room for logs: {disk.mount} (gpucoord's data) has {_left(disk)} left."
    short = disk.free_bytes < least * GIB if disk.total_bytes else None
    return Constraint(DATA_DISK, disk.mount, text), short


def _left(disk: DiskReading) -> str:
    return f"{disk.free_bytes / GIB:.1f} of {disk.total_bytes / GIB:.1f} GiB"


def _memory(host: HostReading, held: bool, policy: ConstraintPolicy) -> Finding:
    total, free = host.memory_total_bytes, host.memory_available_bytes
    stall = host.pressure.memory_full_pct
    checks: list[bool] = []
    why = ""
    if total and free is not None:
        least = policy.memory_free_again_pct if held else policy.memory_free_pct
        checks.append(100 * free / total < least)
        why += f" {free / GIB:.1f} of {total / GIB:.1f} GiB are available."
    if stall is not None:
        checks.append(stall > (policy.memory_stall_over_pct if held else policy.memory_stall_pct))
        why += f" All tasks waited for memory {stall:.0f} % of the time."
    text = f"The host is short of memory.{why}"
    return Constraint(MEMORY, "", text), any(checks) if checks else None


def _throttled(gpu: GpuReading) -> Finding:
    """What the GPU's health says already: it has its own thresholds, and tells it."""
    known = gpu.condition is not None
    text = f"GPU {gpu.index} is held back. {gpu.condition_reason or ''}".strip()
    slowed = gpu.condition is Condition.THROTTLED if known else None
    return Constraint(THROTTLED, gpu.uuid, text), slowed
