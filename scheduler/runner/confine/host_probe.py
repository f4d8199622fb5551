"""Edge: what this machine offers to limit jobs: cgroups, devices of GPUs, and MPS.

Whether jobs can get cgroups is probed by running a process in one.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from scheduler.runner.confine import cgroups
from scheduler.runner.confine.cgroups import Cgroup

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
        yield from (CgroupParent(kind="systemd", scope=scope) for scope in cgroups.reachable())
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
        return Cgroup((cgroups.enter(scope, name, pid),))
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
    if v2.folders and cgroups.hide(v2, [HARMLESS]):
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
