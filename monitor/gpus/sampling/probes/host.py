"""Probe of the host: CPU, memory, disks, pressure, and each process's CPU time."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import psutil
from msgspec import Struct

from monitor.facts.input_rules import escaped
from monitor.facts.readings import (
    CpuProcess,
    DiskReading,
    HostCounters,
    HostReading,
    Limits,
    LimitSource,
    Pressure,
    ProcessIdentity,
)
from monitor.gpus.policy.capability import clamped, least, quantity, visible
from monitor.owners.policy import owner_of
from monitor.owners.probes.credentials import ContainerRuntimes, CredentialReader, account_ranges
from monitor.runtime.probes import disk_space

# Resource limits of this process: machine, CPU affinity, cgroups, pod and settings.


# Version 1 says "no limit" with a number just below 2^63.
_NO_LIMIT = 2**60


class Cgroup:
    """Reads below `root`, so that a test may bring its own /proc and /sys.

    A limit holds for everything below it: each level is asked, up to the top that is mounted.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._mount = root / "sys/fs/cgroup"

    def memory(self) -> list[tuple[LimitSource, int | None]]:
        """Every limit with what is used of it."""
        return [*self._memory_v2(), *self._memory_v1()]

    def cpus(self) -> list[LimitSource]:
        return [*self._cpus_v2(), *self._cpus_v1()]

    def _memory_v2(self) -> Iterator[tuple[LimitSource, int | None]]:
        for level in self._levels("", self._mount):
            limit = _number(level / "memory.max")
            if limit is not None:
                used = _number(level / "memory.current")
                yield LimitSource(limit, "cgroup v2 memory.max"), _without_cache(used, level)

    def _memory_v1(self) -> Iterator[tuple[LimitSource, int | None]]:
        for level in self._levels("memory", self._mount / "memory"):
            limit = _number(level / "memory.limit_in_bytes")
            if limit is not None and limit < _NO_LIMIT:
                used = _number(level / "memory.usage_in_bytes")
                yield (
                    LimitSource(limit, "cgroup v1 memory.limit_in_bytes"),
                    _without_cache(used, level, "total_inactive_file"),
                )

    def _cpus_v2(self) -> Iterator[LimitSource]:
        for level in self._levels("", self._mount):
            quota, _, period = (_text(level / "cpu.max") or "").partition(" ")
            if quota.isdigit() and period.isdigit() and int(period):
                yield LimitSource(int(quota) / int(period), "cgroup v2 cpu.max")

    def _cpus_v1(self) -> Iterator[LimitSource]:
        for folder in ("cpu", "cpu,cpuacct"):
            for level in self._levels("cpu", self._mount / folder):
                quota = _number(level / "cpu.cfs_quota_us")
                period = _number(level / "cpu.cfs_period_us")
                if quota is not None and quota > 0 and period:
                    yield LimitSource(quota / period, "cgroup v1 cpu.cfs_quota_us")

    def _levels(self, controller: str, mount: Path) -> Iterator[Path]:
        """Our group's folder and those above it. In a container only the top may be there."""
        path = Path(self._path(controller).lstrip("/"))
        for level in (path, *path.parents):
            if ".." not in level.parts:
                yield mount / level

    def _path(self, controller: str) -> str:
        """From /proc/self/cgroup; version 2 is the line without a controller."""
        for line in (_text(self._root / "proc/self/cgroup") or "").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controller in controllers.split(",") and (controller or number == "0"):
                return path
        return "/"


def _without_cache(used: int | None, level: Path, key: str = "inactive_file") -> int | None:
    """Used bytes without what the kernel gives back when it is asked for, as kubelet counts."""
    if used is None:
        return None
    for line in (_text(level / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return max(0, used - int(value))
    return used


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


GIB = 1024**3
# Where the Kubernetes Downward API puts a pod's requests and limits: the names of its own
# documentation, and the plain ones. Variables count in a pod only.
POD_FOLDER = "etc/podinfo"
IN_A_POD = "KUBERNETES_SERVICE_HOST"
_PREFIXES = ("POD_", "MY_", "")
_NAMES = {"cpu": ("CPU",), "memory": ("MEMORY", "MEM")}


class LimitsProbe:
    """Reads all that bounds this process. `cpus` and `memory_gib` are the settings'."""

    def __init__(
        self,
        cpus: float | None = None,
        memory_gib: float | None = None,
        root: Path = Path("/"),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._cpus = cpus
        self._memory = None if memory_gib is None else int(memory_gib * GIB)
        self._root = root
        self._environ = os.environ if environ is None else environ
        self._cgroup = Cgroup(root)

    def read(self, machine_cpus: int | None, machine_memory_bytes: int | None) -> Limits:
        """The least of everything, given what the machine has."""
        cpus = least(self._cpu_bounds(machine_cpus))
        used = dict(self._cgroup.memory())
        memory = least([*self._memory_bounds(machine_memory_bytes), *used])
        request = self._pod("memory", "request")
        return Limits(
            cpus=cpus.value if cpus else None,
            cpus_origin=cpus.origin if cpus else None,
            memory_bytes=int(memory.value) if memory else None,
            memory_origin=memory.origin if memory else None,
            memory_used_bytes=self._used(memory, used),
            machine_cpus=machine_cpus,
            machine_memory_bytes=machine_memory_bytes,
            cpus_requested=self._pod("cpu", "request"),
            memory_requested_bytes=None if request is None else int(request),
            visible_gpus=visible(self._environ.get("NVIDIA_VISIBLE_DEVICES")),
        )

    def _used(
        self, memory: LimitSource | None, used: Mapping[LimitSource, int | None]
    ) -> int | None:
        """The use of a pod counts against its limit, which its cgroup mostly has as well."""
        if memory is None or memory.origin == "machine":
            return None
        return used.get(memory) or next((value for value in used.values() if value), None)

    def _cpu_bounds(self, machine: int | None) -> Iterator[LimitSource]:
        if machine is not None:
            yield LimitSource(float(machine), "machine")
        yield from self._cgroup.cpus()
        pod = self._pod("cpu", "limit")
        if pod is not None:
            yield LimitSource(pod, "pod limit")
        if self._cpus is not None:
            yield LimitSource(self._cpus, "setting cpus")
        if self._root == Path("/"):
            yield LimitSource(float(len(os.sched_getaffinity(0))), "CPU affinity")

    def _memory_bounds(self, machine: int | None) -> Iterator[LimitSource]:
        if machine is not None:
            yield LimitSource(float(machine), "machine")
        pod = self._pod("memory", "limit")
        if pod is not None:
            yield LimitSource(pod, "pod limit")
        if self._memory is not None:
            yield LimitSource(float(self._memory), "setting memory_gib")

    def _pod(self, resource: str, kind: str) -> float | None:
        """A request or limit of the pod, from its files or else its variables."""
        sources = [*self._pod_files(resource, kind), *self._pod_variables(resource, kind)]
        return next((value for text in sources if (value := quantity(text))), None)

    def _pod_files(self, resource: str, kind: str) -> Iterator[str]:
        for name in _NAMES[resource]:
            for joint in ("_", "-"):
                path = self._root / POD_FOLDER / f"{name.lower()}{joint}{kind}"
                try:
                    yield path.read_text(errors="replace")
                except OSError:
                    continue

    def _pod_variables(self, resource: str, kind: str) -> Iterator[str]:
        if IN_A_POD not in self._environ:
            return
        for prefix in _PREFIXES:
            for name in _NAMES[resource]:
                text = self._environ.get(f"{prefix}{name}_{kind.upper()}")
                if text:
                    yield text


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


# Identity of a pid, from /proc: owner, container, program, command, session and parents.

_MAX_COMMAND_BYTES = 4096
_MAX_LINEAGE = 64


class ProcessStat(Struct, frozen=True):
    """The used fields of /proc/PID/stat."""

    parent: int
    session: int
    start_ticks: int


class Identities:
    """Looks pids up and remembers them as long as they are asked for.

    A pid that now means another process (another start) is looked up anew. The lineage is that
    of the first look: a process whose parent has ended keeps its parents.
    """

    def __init__(
        self,
        boot_time: float,
        proc: Path = Path("/proc"),
        runtimes: ContainerRuntimes | None = None,
    ) -> None:
        self._boot_time = boot_time
        self._proc = str(proc)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._known: dict[int, ProcessIdentity] = {}
        self._users: dict[int, str] = {}
        self._open: set[int] = set()
        runtimes = ContainerRuntimes() if runtimes is None else runtimes
        self._credentials = CredentialReader(self._read, self._proc, runtimes=runtimes)
        self._ranges = account_ranges()
        # Processes that could not be identified at the last call.
        self.faults: dict[int, Exception] = {}

    def of(self, pids: Iterable[int]) -> dict[int, ProcessIdentity]:
        """The identities of those pids that this machine's /proc knows."""
        identities: dict[int, ProcessIdentity] = {}
        stats: dict[int, ProcessStat | None] = {}
        self.faults = {}
        for pid in set(pids):
            try:
                identity = self._identify(pid, stats)
            except Exception as error:
                # Unknown; the other processes are not affected.
                self.faults[pid] = error
            else:
                if identity is not None:
                    identities[pid] = identity
        self._known = identities
        self._open &= identities.keys()
        return dict(identities)

    def _identify(self, pid: int, stats: dict[int, ProcessStat | None]) -> ProcessIdentity | None:
        stat = stats[pid] = self._stat(pid)
        if stat is None:
            return None
        identity = self._known.get(pid)
        is_same = identity is not None and identity.start_ticks == stat.start_ticks
        if identity is not None and is_same and pid not in self._open:
            return identity
        return self._look_up(pid, stat, stats)

    def _look_up(
        self, pid: int, stat: ProcessStat, stats: dict[int, ProcessStat | None]
    ) -> ProcessIdentity:
        credentials = self._credentials.of(pid)
        # Until the runtime has answered, it is looked up anew.
        (self._open.discard if credentials.is_labelled_known else self._open.add)(pid)
        owner = owner_of(credentials, self._credentials.subordinate(), self._ranges)
        command = self._command(pid)
        born = self._boot_time + stat.start_ticks / self._ticks_per_s
        return ProcessIdentity(
            pid=pid,
            start_ticks=stat.start_ticks,
            created_at=datetime.fromtimestamp(round(born, 2), UTC),
            uid=credentials.uid,
            user=None if owner.uid is None else self._user(owner.uid),
            program=self._program(pid, command),
            command=command,
            session=stat.session,
            lineage=self._lineage(stat, stats),
            job_cgroup=credentials.job_cgroup,
            labelled_job=credentials.labelled_job,
            container=credentials.container,
            owner_source=owner.source,
        )

    def _stat(self, pid: int) -> ProcessStat | None:
        text = self._read(pid, "stat", 1024)
        if text is None:
            return None
        # The program's name, field 2, may hold spaces and brackets.
        fields = text.rpartition(b")")[2].split()
        return ProcessStat(int(fields[1]), int(fields[3]), int(fields[19]))

    def _lineage(self, stat: ProcessStat, stats: dict[int, ProcessStat | None]) -> tuple[int, ...]:
        pids: list[int] = []
        parent = stat.parent
        while parent > 0 and len(pids) < _MAX_LINEAGE:
            pids.append(parent)
            if parent not in stats:
                stats[parent] = self._stat(parent)
            above = stats[parent]
            parent = above.parent if above else 0
        return tuple(pids)

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except (KeyError, OSError):
                self._users[uid] = f"uid {uid}"
        return self._users[uid]

    def _command(self, pid: int) -> tuple[str, ...] | None:
        text = self._read(pid, "cmdline", _MAX_COMMAND_BYTES)
        if not text:
            return None
        return tuple(part.decode(errors="replace") for part in text.rstrip(b"\0").split(b"\0"))

    def _program(self, pid: int, command: tuple[str, ...] | None) -> str | None:
        """The kernel's name for it, in full where the kernel cut it; never an argument.

        A process chooses its name, which events, messages and terminals show.
        """
        text = self._read(pid, "comm", 64)
        if text is None:
            return None
        name = text.decode(errors="replace").rstrip("\n")
        full = command[0].rsplit("/", 1)[-1] if command else ""
        is_cut = len(name) >= 15 and full.startswith(name) and " " not in full
        return escaped(full if is_cut else name)

    def _read(self, pid: int | str, name: str, size: int) -> bytes | None:
        try:
            fd = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(fd, size)
        except OSError:
            return None
        finally:
            os.close(fd)
