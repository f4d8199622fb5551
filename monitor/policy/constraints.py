"""What a host is short of: disk space, memory, or a GPU's cooling; each with hysteresis."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from monitor.readings import DiskReading, GpuReading, HostReading, Snapshot

GIB = 1024**3
DISK, MEMORY, TEMPERATURE = "disk_space", "host_memory", "gpu_temperature"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintPolicy:
    """Thresholds: the first of each pair opens a constraint, the second closes it again."""

    disk_free_pct: tuple[float, float] = (5.0, 7.0)
    data_free_bytes: tuple[int, int] = (2 * GIB, 3 * GIB)
    memory_free_pct: tuple[float, float] = (5.0, 8.0)
    memory_stall_pct: tuple[float, float] = (20.0, 10.0)
    gpu_c: tuple[float, float] = (85.0, 80.0)


@dataclass(frozen=True, slots=True)
class Constraint:
    """One thing in short supply. `kind` and `subject` together are its name."""

    kind: str
    subject: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        return (self.kind, self.subject)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which constraints begin now, and which keys end."""

    opened: tuple[Constraint, ...]
    closed: tuple[tuple[str, str], ...]


def judge(
    snapshot: Snapshot,
    data_folder: str,
    open_keys: Collection[tuple[str, str]],
    policy: ConstraintPolicy,
) -> Verdict:
    """What changes, given what is open. Unknown changes nothing; what is gone is closed."""
    held = frozenset(open_keys)
    opened: list[Constraint] = []
    still: set[tuple[str, str]] = set()
    for constraint, short in _findings(snapshot, data_folder, held, policy):
        if short is None:
            still |= {constraint.key} & held
        elif short:
            still.add(constraint.key)
            if constraint.key not in held:
                opened.append(constraint)
    return Verdict(tuple(opened), tuple(sorted(held - still)))


Finding = tuple[Constraint, bool | None]


def _findings(
    snapshot: Snapshot,
    data_folder: str,
    held: frozenset[tuple[str, str]],
    policy: ConstraintPolicy,
) -> Iterator[Finding]:
    data_mount = mount_of(data_folder, snapshot.host.disks)
    for disk in snapshot.host.disks:
        yield _disk(disk, disk.mount == data_mount, (DISK, disk.mount) in held, policy)
    yield _memory(snapshot.host, (MEMORY, "") in held, policy)
    for gpu in snapshot.gpus:
        yield _heat(gpu, (TEMPERATURE, gpu.uuid) in held, policy)


def mount_of(folder: str, disks: Collection[DiskReading]) -> str | None:
    """The mount point that `folder` is on: the longest that leads to it."""
    inside = f"{folder.rstrip('/')}/"
    above = [disk.mount for disk in disks if inside.startswith(f"{disk.mount.rstrip('/')}/")]
    return max(above, key=len, default=None)


def _disk(disk: DiskReading, holds_data: bool, held: bool, policy: ConstraintPolicy) -> Finding:
    side = 1 if held else 0
    short: bool | None = None
    if disk.total_bytes:
        short = 100 * disk.free_bytes / disk.total_bytes < policy.disk_free_pct[side]
        short = short or (holds_data and disk.free_bytes < policy.data_free_bytes[side])
    what = f"{disk.mount} (gpucoord's data)" if holds_data else disk.mount
    free = f"{disk.free_bytes / GIB:.1f} of {disk.total_bytes / GIB:.1f} GiB"
    return Constraint(DISK, disk.mount, f"Disk space is low: {what} has {free} left."), short


def _memory(host: HostReading, held: bool, policy: ConstraintPolicy) -> Finding:
    side = 1 if held else 0
    total, free = host.memory_total_bytes, host.memory_available_bytes
    stall = host.pressure.memory_full_pct
    checks: list[bool] = []
    why = ""
    if total and free is not None:
        checks.append(100 * free / total < policy.memory_free_pct[side])
        why += f" {free / GIB:.1f} of {total / GIB:.1f} GiB are available."
    if stall is not None:
        checks.append(stall > policy.memory_stall_pct[side])
        why += f" All tasks waited for memory {stall:.0f} % of the time."
    text = f"The host is short of memory.{why}"
    return Constraint(MEMORY, "", text), any(checks) if checks else None


def _heat(gpu: GpuReading, held: bool, policy: ConstraintPolicy) -> Finding:
    heat = gpu.temperature_c
    opens, closes = policy.gpu_c
    hot = None if heat is None else (heat > closes if held else heat >= opens)
    text = f"GPU {gpu.index} is hot: {heat or 0:.0f} °C (it may start new work below {closes:.0f})."
    return Constraint(TEMPERATURE, gpu.uuid, text), hot
