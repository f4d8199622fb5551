"""Rows -> the runner's order: the bounds of a job, from its request, the policy and the machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path

from monitor import policies
from monitor.models import Gpu
from scheduler import means
from scheduler.models import Attempt
from scheduler.policy.bounds import BoundsPolicy, least
from scheduler.runner import abilities, gpu_devices, locks
from scheduler.runner.bounds import Bounds
from scheduler.runner.cgroup_places import Place, find, tidy

KEPT_S = 2.0
Known = Mapping[str, tuple[int, str]]


@cache
def _found() -> Place:
    """Once in a process: it starts one to try it."""
    return find()


@dataclass(slots=True)
class Bounder:
    """Knows what this machine has (`open` looks) and says what each job gets of it."""

    host: str
    data: Path
    lock_folder: Path | None
    place: Place = field(default_factory=Place)
    minors: Mapping[str, int] = field(default_factory=dict)
    mps: str | None = None
    _kept: tuple[float, BoundsPolicy, Known] | None = None

    def open(self, now: datetime) -> None:
        """Look what this machine has, by trying it."""
        self.place = _found()
        tidy(self.place, locks.instance_number(str(self.data)), now.timestamp())
        self.minors = gpu_devices.minors()
        self.mps = gpu_devices.mps_pipes()

    def record(self, now: datetime) -> None:
        """Write down what was found, for the status page. The caller holds the transaction."""
        policy, _ = self._now()
        folder = str(self.lock_folder) if self.lock_folder else None
        found = abilities.found(
            self.place, minors=len(self.minors), mps=self.mps, locks=folder, policy=policy
        )
        means.record(self.host, found, now)

    def bounds(self, attempt: Attempt) -> Bounds:
        """What the runner of this attempt keeps it within."""
        policy, gpus = self._now()
        mine = [gpus[uuid] for uuid in attempt.gpu_uuids if uuid in gpus]
        job = attempt.job
        place = self.place if policy.cgroup else Place()
        limits = {
            "cpu": least(job.cpus, policy.cpus),
            "memory": least(job.memory_bytes, policy.memory_bytes),
            "pids": policy.pids,
        }
        hidden = self._hidden({pci for _, pci in mine}) if policy.hide_gpus else []
        capped = policy.cap_share and bool(mine) and not self._by_mps(attempt, policy)
        return Bounds(
            lock_folder=str(self.lock_folder) if self.lock_folder and mine else "",
            gpus=[index for index, _ in mine],
            alone=job.exclusive,
            instance=locks.instance_number(str(self.data)),
            cgroup=list(place.for_(_controllers(place, limits, hides=bool(hidden)))),
            scope=place.scope,
            cpus=limits["cpu"],
            memory_bytes=None if limits["memory"] is None else int(limits["memory"]),
            pids=policy.pids,
            hidden=hidden,
            share_pct=job.share_pct if capped else None,
            period_s=policy.period_s,
            log_bytes=policy.log_mib * 1024**2,
        )

    def variables(self, attempt: Attempt) -> dict[str, str]:
        """What the job finds in its environment of it."""
        policy, _ = self._now()
        if not self._by_mps(attempt, policy) or self.mps is None:
            return {}
        return {
            "CUDA_MPS_PIPE_DIRECTORY": self.mps,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(attempt.job.share_pct),
        }

    def _by_mps(self, attempt: Attempt, policy: BoundsPolicy) -> bool:
        return bool(policy.mps and self.mps and attempt.job.share_pct and attempt.gpu_uuids)

    def _hidden(self, mine: set[str]) -> list[list[int]]:
        """Every GPU of the machine but these; none when even its own can't be told."""
        own = {gpu_devices.short(pci) for pci in mine if pci}
        if len(own) < len(mine) or not own <= set(self.minors):
            return []
        return [[gpu_devices.MAJOR, m] for pci, m in self.minors.items() if pci not in own]

    def _now(self) -> tuple[BoundsPolicy, Known]:
        """Read again when it is older than KEPT_S: many jobs may start at once."""
        at = time.monotonic()
        if self._kept is None or at - self._kept[0] > KEPT_S:
            rows = Gpu.objects.filter(host=self.host).values_list("uuid", "index", "pci_id")
            gpus = {uuid: (index, pci) for uuid, index, pci in rows}
            self._kept = (at, policies.current(BoundsPolicy), gpus)
        return self._kept[1], self._kept[2]


def _controllers(place: Place, limits: Mapping[str, float | None], *, hides: bool) -> set[str]:
    """Those of version 1 that these limits need."""
    found = {name for name, limit in limits.items() if limit is not None}
    return {*found, "devices"} if hides and "bpf" not in place.can else found
