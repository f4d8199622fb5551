"""Probe of the host: CPU, memory, disks, pressure, and each process's CPU time."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import psutil

from monitor.facts.hosts import Limits
from monitor.facts.input_rules import escaped
from monitor.facts.readings import DiskReading, HostCounters, HostReading, Pressure, ProcessIdentity
from monitor.facts.usage import CpuProcess
from monitor.gpus.policy.capability import clamped
from monitor.gpus.sampling.probes.identities import Identities
from monitor.gpus.sampling.probes.limits import LimitsProbe
from monitor.runtime.probes import disk_space

SECTOR_BYTES = 512
DISKS_EVERY_S = 5.0
MOUNTS_EVERY_S = 60.0
LIMITS_EVERY_S = 5.0
_SKIPPED_TYPES = {"squashfs", "iso9660", "tmpfs", "ramfs", "erofs"}
T = TypeVar("T")


class HostProbe:
    """Reads the machine.

    `paths`: folders whose file systems are reported, such as the data folder.
    """

    def __init__(
        self,
        name: str,
        paths: Iterable[Path] = (),
        root: Path = Path("/"),
        limits: LimitsProbe | None = None,
    ) -> None:
        self.name = name
        self._limits = limits or LimitsProbe(root=root)
        self._limited: tuple[float, Limits] = (float("-inf"), Limits())
        self._paths = tuple(paths)
        self._proc = root / "proc"
        self._sys = root / "sys"
        self._identities: Identities | None = None
        self._boot_id: str | None = None
        self._mounts: tuple[float, list[str]] = (float("-inf"), [])
        self._disks: tuple[float, tuple[DiskReading, ...]] = (float("-inf"), ())

    def open(self) -> None:
        self._identities = Identities(psutil.boot_time(), self._proc)
        self._boot_id = self._text("sys/kernel/random/boot_id")

    def close(self) -> None:
        self._identities = None

    def identities(self, pids: Iterable[int]) -> dict[int, ProcessIdentity]:
        """Identities of those pids, as far as this machine's /proc knows them."""
        return self._identities.of(pids) if self._identities else {}

    @property
    def process_faults(self) -> Mapping[int, Exception]:
        """The processes that could not be identified at the last call, each with its error."""
        return self._identities.faults if self._identities else {}

    def read(self, now: datetime) -> HostReading:
        """The machine at `now`; a part that can't be read is None."""
        t = now.timestamp()
        load = _or_none(os.getloadavg) or (None, None, None)
        memory = _or_none(psutil.virtual_memory)
        swap = _or_none(psutil.swap_memory)
        busy, total = _or_none(_cpu_seconds) or (None, None)
        limits = self._read_limits(t, memory.total if memory else None)
        memory_total, available = clamped(
            memory.total if memory else None, memory.available if memory else None, limits
        )
        read, written = _or_none(self._disk_bytes) or (None, None)
        return HostReading(
            name=self.name,
            boot_id=self._boot_id,
            cpu_count=os.cpu_count(),
            load_1=load[0],
            load_5=load[1],
            load_15=load[2],
            memory_total_bytes=memory_total,
            memory_available_bytes=available,
            swap_total_bytes=swap.total if swap else None,
            swap_used_bytes=swap.used if swap else None,
            disks=_or_none(lambda: self._disk_space(t)) or (),
            pressure=self._pressure(),
            counters=HostCounters(
                cpu_busy_s=busy,
                cpu_total_s=total,
                disk_read_bytes=read,
                disk_written_bytes=written,
            ),
            limits=limits,
        )

    def _read_limits(self, t: float, memory_bytes: int | None) -> Limits:
        if t - self._limited[0] >= LIMITS_EVERY_S or t < self._limited[0]:
            limits = _or_none(lambda: self._limits.read(os.cpu_count(), memory_bytes))
            self._limited = (t, limits or Limits())
        return self._limited[1]

    def _disk_bytes(self) -> tuple[int, int]:
        """Bytes read and written by physical disks; stacked ones (dm, md, loop) are left out."""
        read = written = 0
        for line in (self._proc / "diskstats").read_text(errors="replace").splitlines():
            fields = line.split()
            # A slash in the name of a device is an exclamation mark in /sys.
            if (self._sys / "block" / fields[2].replace("/", "!") / "device").exists():
                read += int(fields[5]) * SECTOR_BYTES
                written += int(fields[9]) * SECTOR_BYTES
        return read, written

    def _disk_space(self, t: float) -> tuple[DiskReading, ...]:
        if t - self._mounts[0] >= MOUNTS_EVERY_S or t < self._mounts[0]:
            self._mounts = (t, self._find_mounts())
        if t - self._disks[0] >= DISKS_EVERY_S or t < self._disks[0]:
            readings = [_or_none(partial(_disk, mount)) for mount in self._mounts[1]]
            self._disks = (t, tuple(reading for reading in readings if reading))
        return self._disks[1]

    def _find_mounts(self) -> list[str]:
        """One mount point of each local, writable file system, and those of `paths`."""
        points = ["/", *(_mount_of(path) for path in self._paths)]
        for part in psutil.disk_partitions(all=False):
            writable = "ro" not in part.opts.split(",")
            if writable and part.fstype not in _SKIPPED_TYPES and Path(part.mountpoint).is_dir():
                points.append(part.mountpoint)
        devices: dict[int, str] = {}
        for point in points:
            with contextlib.suppress(OSError):
                devices.setdefault(Path(point).stat().st_dev, point)
        return sorted(devices.values())

    def _pressure(self) -> Pressure:
        cpu, memory, io = (self._stall(name) for name in ("cpu", "memory", "io"))
        return Pressure(
            cpu_some_pct=cpu.get("some"),
            memory_some_pct=memory.get("some"),
            memory_full_pct=memory.get("full"),
            io_some_pct=io.get("some"),
            io_full_pct=io.get("full"),
        )

    def _stall(self, name: str) -> dict[str, float]:
        """{"some": avg10, "full": avg10}, or nothing where the kernel keeps no PSI."""
        lines = (self._text(f"pressure/{name}") or "").splitlines()
        parts = [line.replace("avg10=", "").split() for line in lines]
        return {part[0]: float(part[1]) for part in parts if len(part) > 1}

    def _text(self, name: str) -> str | None:
        try:
            return (self._proc / name).read_text(errors="replace").strip()
        except OSError:
            return None


def _or_none(read: Callable[[], T]) -> T | None:
    # A part of /proc that is missing or malformed must not affect the others.
    try:
        return read()
    except (OSError, RuntimeError, ValueError, IndexError, psutil.Error):
        return None


def _cpu_seconds() -> tuple[float, float]:
    """Seconds that all CPUs worked, and all seconds that they had."""
    times = psutil.cpu_times()
    # guest time is counted in user time already.
    total = sum(times) - times.guest - times.guest_nice
    return round(total - times.idle - times.iowait, 2), round(total, 2)


def _disk(mount: str) -> DiskReading:
    space = disk_space.read(mount)
    return DiskReading(
        mount=mount, total_bytes=space.usable_bytes, free_bytes=space.available_bytes
    )


def _mount_of(path: Path) -> str:
    point = path.absolute()
    while not point.exists() or (not point.is_mount() and point != point.parent):
        point = point.parent
    return str(point)


PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_processes(proc: Path = PROC) -> tuple[CpuProcess, ...]:
    """All processes with the CPU seconds that they have taken so far; some ms for a thousand."""
    processes = []
    for folder in proc.iterdir():
        if folder.name.isdigit():
            process = _read(folder, int(folder.name))
            if process is not None:
                processes.append(process)
    return tuple(processes)


def _read(folder: Path, pid: int) -> CpuProcess | None:
    """None: the process has ended."""
    try:
        text = (folder / "stat").read_text(errors="replace")
        uid = folder.stat().st_uid
    except OSError:
        return None
    # The name stands in parentheses, and may hold some itself.
    program = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return CpuProcess(
        pid=pid,
        start_ticks=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
        uid=uid,
        user=_name(uid),
        program=escaped(program),
        session=int(fields[3]),
        parent=int(fields[1]),
    )


@lru_cache(maxsize=256)
def _name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
