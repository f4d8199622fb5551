"""Resource limits of this process: machine, CPU affinity, cgroups, pod and settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from monitor.facts.hosts import Limits, LimitSource
from monitor.gpus.policy.capability import least, quantity, visible

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
