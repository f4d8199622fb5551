"""Edge: a control group per job: limits, a freezer and a kill that nothing escapes.

One class for version 2, version 1 and both side by side: a job has a folder in each hierarchy that
is given, and each wish is written wherever a file for it is. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import stat
import struct
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from scheduler.runner import process_tree

PERIOD_US = 100_000
GONE_AFTER_S = 1.0
HIGH_PART = 0.9


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The folders of one job; `make` them first. A wish that no folder knows is left out."""

    folders: tuple[Path, ...]

    @classmethod
    def under(cls, parents: Iterable[str], name: str) -> Cgroup:
        return cls(tuple(Path(parent) / name for parent in parents))

    def make(self) -> None:
        """Create the folders. Raises OSError without permission."""
        for folder in self.folders:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)

    def limit(
        self,
        *,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
    ) -> None:
        """Set limits for all processes of the job together."""
        if cpus is not None:
            quota = max(1000, round(cpus * PERIOD_US))
            self._write("cpu.max", f"{quota} {PERIOD_US}")
            self._write("cpu.cfs_period_us", str(PERIOD_US))
            self._write("cpu.cfs_quota_us", str(quota))
        if memory_bytes is not None:
            self._write("memory.oom.group", "1")
            # It is slowed down before it is killed, so that it can save its work.
            self._write("memory.high", str(round(memory_bytes * HIGH_PART)))
            self._write("memory.max", str(memory_bytes))
            self._write("memory.limit_in_bytes", str(memory_bytes))
        if pids is not None:
            self._write("pids.max", str(pids))

    def add(self, pid: int) -> None:
        """Put a process, and all that it will start, in."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def pids(self) -> set[int]:
        return set().union(*map(_pids, self.folders))

    def holding(self, pid: int) -> Cgroup | None:
        """The part of it that this process has entered; None = none."""
        folders = tuple(folder for folder in self.folders if pid in _pids(folder))
        return Cgroup(folders) if folders else None

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed one of its processes for memory."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                for line in _content(f"{folder}/{name}").splitlines():
                    if line.startswith(b"oom_kill ") and line != b"oom_kill 0":
                        return True
        return False

    @property
    def can_freeze(self) -> bool:
        names = ("cgroup.freeze", "freezer.state")
        return any((folder / name).exists() for folder in self.folders for name in names)

    def freeze(self, *, on: bool) -> bool:
        """Freeze or thaw all processes; False: impossible."""
        is_written = self._write("cgroup.freeze", "1" if on else "0")
        return is_written or self._write("freezer.state", "FROZEN" if on else "THAWED")

    def deny(self, devices: Iterable[tuple[int, int]]) -> bool:
        """Version 1: close character devices to the job; False: impossible."""
        return all(self._write("devices.deny", f"c {a}:{b} rwm") for a, b in devices)

    def kill(self) -> bool:
        """SIGKILL all processes, also those forked meanwhile. False: there is no process."""
        if not self.folders or not self.pids():
            return False
        if not self._write("cgroup.kill", "1"):
            self._kill_each()
        return True

    def remove(self) -> None:
        """Remove the folders once they are empty; processes that end slowly get a moment."""
        ends = time.monotonic() + GONE_AFTER_S
        left = [folder for folder in self.folders if folder.exists()]
        while left and time.monotonic() < ends:
            left = [folder for folder in left if not _removed(folder)]
            if left:
                time.sleep(0.01)

    def _kill_each(self) -> None:
        """Freeze first, so that no process forks away; thawed processes die of the signal."""
        self.freeze(on=True)
        for pid in self.pids() - {os.getpid()}:
            ticks = process_tree.start_ticks_of(pid)
            if ticks is not None:
                process_tree.signal_one(pid, ticks, signal.SIGKILL)
        self.freeze(on=False)

    def _write(self, name: str, text: str) -> bool:
        """Into each folder that has this file; whether one took it."""
        # Each folder gets it.
        written = [_written(f"{folder}/{name}", text) for folder in self.folders]
        return any(written)


def _written(path: str, text: str) -> bool:
    """Into a file that exists. Without Path and text files: this runs for each job."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def _content(path: str) -> bytes:
    """b"" = it can't be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def _pids(folder: Path) -> set[int]:
    return set(map(int, _content(f"{folder}/cgroup.procs").split()))


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


TIMEOUT_S = 5.0
MANAGER = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
)


def reachable() -> Iterator[str]:
    """ "system" for root, "user" with a user's own bus; whether it works, only a trial tells."""
    if shutil.which("busctl") is None:
        return
    if os.geteuid() == 0 and Path("/run/systemd/system").is_dir():
        yield "system"
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if Path(runtime, "bus").exists():
        yield "user"


def enter_scope(scope: str, name: str, pid: int) -> Path:
    """Put a process into a scope of its own; returns the scope's folder."""
    unit = unit_name(name)
    properties = ("4", "PIDs", "au", "1", str(pid), "Delegate", "b", "true")
    more = ("Description", "s", f"gpucoord {name}", "CollectMode", "s", "inactive-or-failed")
    call = ("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", *properties, *more, "0")
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    subprocess.run(
        ["busctl", f"--{scope}", "call", *MANAGER, *call],
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        env={"PATH": os.defpath, "XDG_RUNTIME_DIR": runtime},
    )
    return folder_of(pid, unit)


def unit_name(name: str) -> str:
    return f"gpucoord-{name}.scope"


def folder_of(pid: int, unit: str, timeout_s: float = TIMEOUT_S) -> Path:
    """The job is asynchronous: the process may not be in yet."""
    import time

    ends = time.monotonic() + timeout_s
    while True:
        for line in Path(f"/proc/{pid}/cgroup").read_text(errors="replace").splitlines():
            if line.startswith("0::") and line.endswith(f"/{unit}"):
                return Path("/sys/fs/cgroup" + line[3:])
        if time.monotonic() >= ends:
            break
        time.sleep(0.005)
    raise OSError(0, f"systemd did not put process {pid} into {unit}")


# Edge: close device files to a job's cgroup, by the device list of version 1 or a BPF program.
#
# The program allows everything except the given character devices. It is attached to the job's
# folder in the version 2 hierarchy and is removed with it. Both need root.


Device = tuple[int, int]
SYSCALL = {"x86_64": 321, "aarch64": 280, "ppc64le": 361}
PROG_LOAD, PROG_ATTACH = 5, 8
TYPE_CGROUP_DEVICE, ATTACH_CGROUP_DEVICE, ALLOW_MULTI = 15, 6, 2
# struct bpf_cgroup_dev_ctx: access_type (kind in its lower half), major, minor.
KIND, MAJOR, MINOR = 0, 4, 8
CHARACTER = 2
LOAD, MOVE, AND, SKIP_UNLESS, RETURN = 0x61, 0xB7, 0x57, 0x55, 0x95


def hide(cgroup: Cgroup, devices: Sequence[Device]) -> str:
    """Close these character devices to the cgroup; returns the method, "" = none works."""
    if not devices:
        return ""
    if cgroup.deny(devices) and any((f / "devices.deny").exists() for f in cgroup.folders):
        return "cgroup v1"
    for folder in cgroup.folders:
        if (folder / "cgroup.type").exists() or (folder / "cgroup.events").exists():
            with suppress(OSError):
                _attach(str(folder), program(devices))
                return "BPF"
    return ""


def program(devices: Sequence[Device]) -> bytes:
    """The machine code: 0 = closed for these, 1 = open for all else."""
    code = [_op(LOAD, 2, 1, KIND), _op(AND, 2, 0, 0, 0xFFFF)]
    code += [_op(LOAD, 3, 1, MAJOR), _op(LOAD, 4, 1, MINOR)]
    for major, minor in devices:
        # Each rule is five long: kind, major and minor must agree, then it is closed.
        code += [
            _op(SKIP_UNLESS, 2, 0, 4, CHARACTER),
            _op(SKIP_UNLESS, 3, 0, 3, major),
            _op(SKIP_UNLESS, 4, 0, 2, minor),
            _op(MOVE, 0, 0, 0, 0),
            _op(RETURN),
        ]
    return b"".join([*code, _op(MOVE, 0, 0, 0, 1), _op(RETURN)])


def _op(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | to, offset, value)


def _attach(folder: str, code: bytes) -> None:
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    where = (ctypes.addressof(instructions), ctypes.addressof(licence))
    loaded = _bpf(PROG_LOAD, struct.pack("<IIQQ", TYPE_CGROUP_DEVICE, len(code) // 8, *where))
    try:
        target = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(
                PROG_ATTACH,
                struct.pack("<IIII", target, loaded, ATTACH_CGROUP_DEVICE, ALLOW_MULTI),
            )
        finally:
            os.close(target)
    finally:
        os.close(loaded)


def _bpf(command: int, attributes: bytes) -> int:
    number = SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(0, "BPF on this kind of machine is not known")
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads as much as it knows; what is not told must be 0.
    given = ctypes.create_string_buffer(attributes, 128)
    answer = libc.syscall(number, command, given, 128)
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(answer)


# Means of this machine to limit jobs: cgroups, devices of GPUs, and MPS.
#
# Whether jobs can get cgroups is probed by running a process in one.


NAME = "gpucoord"
CONTROLLERS = ("cpu", "memory", "pids")
USED_V1 = (*CONTROLLERS, "freezer", "devices")
WAIT_S = 2.0
FORGOTTEN_S = 3600.0
# /dev/full, kept closed to the process that tries it.
HARMLESS = (1, 7)
INFORMATION = Path("/proc/driver/nvidia/gpus")
NVIDIA_MAJOR = 195
MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - where NVIDIA's own programs look


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupParent:
    """Where jobs get their cgroups. kind: "v2", "v1", "systemd" or "" (nowhere).

    folders: by controller, "" is version 2. can: the working ones of cpu, memory, pids, freeze,
    kill, devices, bpf. problem: why there are none.
    """

    kind: str = ""
    by_controller: Mapping[str, str] = field(default_factory=dict)
    scope: str = ""
    can: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.by_controller.values()))

    def for_(self, controllers: Collection[str]) -> tuple[str, ...]:
        """The folders that a job with these wishes needs: each more costs its start a while."""
        wanted = {"", *controllers}
        if "" not in self.by_controller:
            # Without version 2, only this holds all processes for an exact kill.
            wanted.add("freezer")
        folders = (f for name, f in self.by_controller.items() if name in wanted)
        return tuple(dict.fromkeys(folders))


def find_parent() -> CgroupParent:
    """Try each kind with a real process; the first that holds it is taken."""
    problems = []
    for place in _candidates():
        try:
            return _tried(place)
        except (OSError, subprocess.SubprocessError) as error:
            problems.append(f"{place.kind}: {getattr(error, 'strerror', None) or error}")
    return CgroupParent(problem="; ".join(problems) or "no cgroup hierarchy is mounted")


def remove_stale(place: CgroupParent, instance: int, now_t: float) -> int:
    """Remove empty cgroups of jobs; returns their number.

    Of other instances only old ones, because a new one may be about to be used.
    """
    removed = 0
    for folder in (f for parent in place.folders for f in Path(parent).glob("*-job-*")):
        with suppress(OSError):
            is_ours = folder.name.startswith(f"{instance}-")
            if is_ours or now_t - folder.stat().st_mtime > FORGOTTEN_S:
                folder.rmdir()
                removed += 1
    return removed


def _candidates() -> Iterator[CgroupParent]:
    mounts = hierarchies(Path("/proc/self/mounts").read_text(errors="replace"))
    own = own_cgroups(Path("/proc/self/cgroup").read_text(errors="replace"))
    unified = mounts.get("")
    if unified and Path(unified, "cgroup.controllers").is_file() and len(mounts) == 1:
        if os.geteuid() == 0:
            yield CgroupParent(kind="v2", by_controller={"": f"{unified}/{NAME}"})
        yield from (CgroupParent(kind="systemd", scope=scope) for scope in reachable())
        yield CgroupParent(kind="v2", by_controller={"": _below(unified, own.get("", "/"))})
        return
    v1 = {name: _below(mounts[name], own.get(name, "/")) for name in USED_V1 if name in mounts}
    if v1 and unified:
        # Beside version 1 it has no controllers, but it kills and freezes best.
        yield CgroupParent(kind="v1", by_controller={**v1, "": f"{unified}/{NAME}"})
    if v1:
        yield CgroupParent(kind="v1", by_controller=v1)


def _below(mount: str, own: str) -> str:
    return f"{mount}{own}/{NAME}".replace("//", "/")


def _tried(place: CgroupParent) -> CgroupParent:
    """Probe a cgroup with a process: entering, limits, freezing and killing must work."""
    with subprocess.Popen(["/bin/sleep", "30"], start_new_session=True) as process:
        cgroup: Cgroup | None = None
        try:
            _prepare(place)
            cgroup = enter(place.folders, place.scope, f"probe-{os.getpid()}", process.pid)
            can = frozenset(_abilities(cgroup))
            cgroup.kill()
            process.wait(WAIT_S)
        finally:
            process.kill()
            process.wait()
            if cgroup is not None:
                cgroup.remove()
    return replace(place, can=can)


def enter(folders: Iterable[str], scope: str, name: str, pid: int) -> Cgroup:
    """A new cgroup with this process in it."""
    if scope:
        return Cgroup((enter_scope(scope, name, pid),))
    cgroup = Cgroup.under(folders, name)
    cgroup.make()
    cgroup.add(pid)
    if pid not in cgroup.pids():
        raise OSError(0, "a process did not go in")
    return cgroup


def _prepare(place: CgroupParent) -> None:
    """Enable the controllers for child cgroups of version 2; impossible where processes are."""
    for folder in map(Path, place.folders):
        folder.mkdir(mode=0o755, exist_ok=True)
        for above in (folder.parent, folder):
            switch = above / "cgroup.subtree_control"
            for name in CONTROLLERS:
                with suppress(OSError):
                    if switch.exists():
                        switch.write_text(f"+{name}")


def _abilities(cgroup: Cgroup) -> Iterator[str]:
    files = {
        "cpu": ("cpu.max", "cpu.cfs_quota_us"),
        "memory": ("memory.max", "memory.limit_in_bytes"),
        "pids": ("pids.max",),
        "kill": ("cgroup.kill",),
        "devices": ("devices.deny",),
    }
    for name, entry in files.items():
        if any((folder / file).exists() for folder in cgroup.folders for file in entry):
            yield name
    v2 = Cgroup(tuple(f for f in cgroup.folders if (f / "cgroup.events").exists()))
    if v2.folders and hide(v2, [HARMLESS]):
        yield "bpf"
    if cgroup.can_freeze and cgroup.freeze(on=True):
        ends = time.monotonic() + WAIT_S
        frozen = False
        while not frozen and time.monotonic() < ends:
            frozen = _is_frozen(cgroup)
        cgroup.freeze(on=False)
        if frozen:
            yield "freeze"


def _is_frozen(cgroup: Cgroup) -> bool:
    for folder in cgroup.folders:
        with suppress(OSError):
            if "frozen 1" in (folder / "cgroup.events").read_text():
                return True
        with suppress(OSError):
            if (folder / "freezer.state").read_text().strip() == "FROZEN":
                return True
    return False


def hierarchies(text: str) -> dict[str, str]:
    """Controller -> where its hierarchy is mounted, from /proc/self/mounts; "" is version 2."""
    mounts: dict[str, str] = {}
    for line in text.splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup2":
            mounts.setdefault("", point)
        elif kind == "cgroup":
            for name in options.split(","):
                mounts.setdefault(name, point)
    return {name: point for name, point in mounts.items() if name in ("", *USED_V1)}


def own_cgroups(text: str) -> dict[str, str]:
    """Controller -> the cgroup of a process, from its /proc/PID/cgroup; "" is version 2."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


def minors(root: Path = INFORMATION) -> dict[str, int]:
    """PCI address -> minor number of the GPU's /dev/nvidiaN; {} without that driver."""
    by_pci_id: dict[str, int] = {}
    with suppress(OSError):
        for folder in root.iterdir():
            with suppress(OSError, ValueError):
                for line in (folder / "information").read_text().splitlines():
                    name, _, value = line.partition(":")
                    if name.strip() == "Device Minor":
                        by_pci_id[short_pci_id(folder.name)] = int(value)
    return by_pci_id


def short_pci_id(pci_id: str) -> str:
    """The same for 00000000:3B:00.0 and 0000:3b:00.0."""
    domain, _, rest = pci_id.lower().partition(":")
    return f"{int(domain, 16):x}:{rest}"


def mps_pipes() -> str | None:
    """The pipe folder of the MPS daemon; None = no daemon runs."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_PIPES
    with suppress(OSError):
        if stat.S_ISFIFO(Path(folder, "control").stat().st_mode):
            return folder
    return None
