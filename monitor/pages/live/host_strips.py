"""The dashboard's strip of host figures: CPU, memory, disk, load and pressure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from monitor.facts.readings import DiskReading, HostReading, Snapshot
from monitor.pages.live.cards import Values, in_gib, round_sig3, round_whole


@dataclass(frozen=True, slots=True)
class HostStrip:
    """One host. All its figures travel as values."""

    name: str
    cpu_count: int | None
    cpus: float | None
    cpus_origin: str | None
    memory_origin: str | None
    memory_total_bytes: int | None
    swap_total_bytes: int | None
    disk_mount: str | None
    disk_total_bytes: int | None
    reading: HostReading = field(compare=False)
    # Contact with it is lost, so this is its last reading.
    is_silent: bool = False

    @property
    def element_id(self) -> str:
        return f"host-{self.name}"

    @property
    def is_cpu_limited(self) -> bool:
        """Whether a limit leaves fewer CPUs than the machine has."""
        return self.cpus is not None and self.cpus < (self.cpu_count or 0)

    @property
    def disk(self) -> DiskReading | None:
        return fullest(self.reading.disks)

    @property
    def memory_used_bytes(self) -> int | None:
        total, available = self.memory_total_bytes, self.reading.memory_available_bytes
        return None if total is None or available is None else total - available

    @property
    def disk_pct(self) -> float | None:
        disk = self.disk
        return disk.used_pct if disk else None

    @property
    def values(self) -> Values:
        host = self.reading
        return (
            round_whole(host.cpu_pct),
            round_sig3(host.load_1),
            in_gib(self.memory_used_bytes),
            in_gib(host.swap_used_bytes),
            round_whole(self.disk_pct),
            in_mb(host.disk_read_bps),
            in_mb(host.disk_write_bps),
            round_whole(host.pressure.cpu_some_pct),
            round_whole(host.pressure.memory_some_pct),
            round_whole(host.pressure.io_some_pct),
        )


def strips(snapshots: Iterable[Snapshot], silent: Collection[str] = ()) -> list[HostStrip]:
    """silent: hosts without contact."""
    shown = [_strip(snapshot.host) for snapshot in snapshots]
    return [replace(strip, is_silent=True) if strip.name in silent else strip for strip in shown]


def in_mb(value: float | None) -> float | None:
    return None if value is None else round_sig3(value / 1e6)


def fullest(disks: Sequence[DiskReading]) -> DiskReading | None:
    return max((d for d in disks if d.total_bytes), key=lambda d: d.used_pct or 0.0, default=None)


def _strip(host: HostReading) -> HostStrip:
    disk = fullest(host.disks)
    return HostStrip(
        name=host.name,
        cpu_count=host.cpu_count,
        cpus=host.limits.cpus,
        cpus_origin=host.limits.cpus_origin,
        memory_origin=host.limits.memory_origin,
        memory_total_bytes=host.memory_total_bytes,
        swap_total_bytes=host.swap_total_bytes,
        disk_mount=disk.mount if disk else None,
        disk_total_bytes=disk.total_bytes if disk else None,
        reading=host,
    )
