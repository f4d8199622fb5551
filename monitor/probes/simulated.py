"""The probe of a simulated server: the scenario at `now`, with our running jobs' load on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from monitor.probes.pauses import Pauses
from monitor.probes.scenario import Load, Scenario
from monitor.probes.workloads import GIB
from monitor.readings import ClaimFact, GpuSweep

DEFAULT_JOB_GIB = 6.0
# The heat of a job that has ended lingers this long.
_REMEMBER_S = 120.0


class SimulatedProbe:
    """Attributes load to the real pids of running jobs, as their claims name them."""

    name = "simulated"

    def __init__(self, gpus: int = 8, seed: int = 1, processes: int = 0) -> None:
        self.scenario = Scenario(gpus, seed, processes)
        self._loads: dict[tuple[str, int], Load] = {}
        self._pauses = Pauses()

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        self._pauses.close()

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep:
        self._follow(now.timestamp(), claims)
        paused = self._pauses.parts(x.pid for x in self._loads.values() if x.ended is None)
        loads = [replace(x, works=1 - paused.get(x.pid, 0.0)) for x in self._loads.values()]
        return self.scenario.at(now, loads)

    def _follow(self, t: float, claims: Sequence[ClaimFact]) -> None:
        """Begin the loads of new claims, end those of closed ones, forget old ones."""
        index = {uuid: i for i, uuid in enumerate(self.scenario.uuids)}
        open_now: set[tuple[str, int]] = set()
        for claim in claims:
            gpu = index.get(claim.gpu_uuid)
            if gpu is None or claim.leader_pid is None:
                continue
            key = (claim.job_ref, gpu)
            open_now.add(key)
            if key not in self._loads or self._loads[key].pid != claim.leader_pid:
                self._loads[key] = _load(claim, gpu, t)
        for key, load in list(self._loads.items()):
            if key not in open_now and load.ended is None:
                self._loads[key] = replace(load, ended=t)
            elif load.ended is not None and load.ended < t - _REMEMBER_S:
                del self._loads[key]


def _load(claim: ClaimFact, gpu: int, t: float) -> Load:
    wanted = claim.memory_bytes * 0.85 / GIB if claim.memory_bytes else DEFAULT_JOB_GIB
    began = claim.since.timestamp() if claim.since else t
    return Load(gpu=gpu, pid=claim.leader_pid or 0, gib=wanted, began=began)
