"""How much of the machine this process may use: CPUs, cgroups, the pod, the settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from monitor.limits import Bound, Limits
from monitor.policy.limits import least, quantity, visible
from monitor.probes.cgroups import Cgroup

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

    def _used(self, memory: Bound | None, used: Mapping[Bound, int | None]) -> int | None:
        """What a pod uses counts against its limit, which its cgroup mostly has as well."""
        if memory is None or memory.origin == "machine":
            return None
        return used.get(memory) or next((value for value in used.values() if value), None)

    def _cpu_bounds(self, machine: int | None) -> Iterator[Bound]:
        if machine is not None:
            yield Bound(float(machine), "machine")
        yield from self._cgroup.cpus()
        pod = self._pod("cpu", "limit")
        if pod is not None:
            yield Bound(pod, "pod limit")
        if self._cpus is not None:
            yield Bound(self._cpus, "setting cpus")
        if self._root == Path("/"):
            yield Bound(float(len(os.sched_getaffinity(0))), "CPU affinity")

    def _memory_bounds(self, machine: int | None) -> Iterator[Bound]:
        if machine is not None:
            yield Bound(float(machine), "machine")
        pod = self._pod("memory", "limit")
        if pod is not None:
            yield Bound(pod, "pod limit")
        if self._memory is not None:
            yield Bound(float(self._memory), "setting memory_gib")

    def _pod(self, resource: str, kind: str) -> float | None:
        """A request or limit of the pod, from its files or else its variables."""
        found = [*self._pod_files(resource, kind), *self._pod_variables(resource, kind)]
        return next((value for text in found if (value := quantity(text))), None)

    def _pod_files(self, resource: str, kind: str) -> Iterator[str]:
        for name in _NAMES[resource]:
            for joint in ("_", "-"):
                path = self._root / POD_FOLDER / f"{name.lower()}{joint}{kind}"
                try:
                    yield path.read_text()
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
