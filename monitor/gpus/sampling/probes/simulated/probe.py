"""The probe of a simulated server: the scenario at `now`, with our running jobs' load on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import Event, Lock, Thread

from msgspec.structs import replace

from monitor.facts.claims import ASLEEP, ClaimFact, ClaimKind
from monitor.facts.readings import GpuSweep
from monitor.gpus.sampling.probes.simulated.scenario import Load, Scenario
from monitor.gpus.sampling.probes.simulated.workloads import GIB

CGROUPS = Path("/sys/fs/cgroup")
LOOK_S = 0.03


class SimulatedPauses:
    """Looks at processes all the time, as a driver's figures are means and no instants.

    Its thread is there only while there are processes to look at.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        # By pid: how often it was looked at, and found paused, since the last question.
        self._seen: dict[int, list[int]] = {}
        self._thread: Thread | None = None
        self._stops = Event()

    def parts(self, pids: Iterable[int]) -> dict[int, float]:
        """The fraction of the time since the last call for which each process was paused."""
        with self._lock:
            before, self._seen = self._seen, {pid: [0, 0] for pid in pids}
            if self._seen and self._thread is None:
                self._thread = Thread(target=self._look, name="pauses", daemon=True)
                self._thread.start()
            return {pid: _part(pid, *before.get(pid, (0, 0))) for pid in self._seen}

    def close(self) -> None:
        self._stops.set()

    def _look(self) -> None:
        while not self._stops.wait(LOOK_S):
            with self._lock:
                pids = list(self._seen)
                if not pids:
                    self._thread = None
                    return
            paused = {pid: is_paused(pid) for pid in pids}
            with self._lock:
                for pid in paused.keys() & self._seen.keys():
                    self._seen[pid][0] += 1
                    self._seen[pid][1] += paused[pid]


def _part(pid: int, looks: int, paused: int) -> float:
    return paused / looks if looks else float(is_paused(pid))


def is_paused(pid: int) -> bool:
    """Whether the process is stopped or frozen now; False if it has ended."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        if stat.rpartition(")")[2].split()[0] in ("T", "t"):
            return True
    with suppress(OSError):
        return any(_is_frozen(line) for line in _lines(f"/proc/{pid}/cgroup"))
    return False


def _is_frozen(line: str) -> bool:
    _, controllers, path = line.split(":", 2)
    if "freezer" in controllers:
        with suppress(OSError):
            state = CGROUPS / "freezer" / path.lstrip("/") / "freezer.state"
            return state.read_text().strip() != "THAWED"
    elif not controllers and path != "/":
        for root in (CGROUPS, CGROUPS / "unified"):
            with suppress(OSError):
                if "frozen 1" in (root / path.lstrip("/") / "cgroup.events").read_text():
                    return True
    return False


def _lines(path: str) -> list[str]:
    return Path(path).read_text(errors="replace").splitlines()


DEFAULT_JOB_GIB = 6.0
# The heat of a job that has ended lingers this long.
_REMEMBER_S = 120.0
# Of the time, a model without requests works this part.
_WAITING_MODEL_WORKS = 0.02


class SimulatedProbe:
    """Attributes load to the real pids of running jobs, as their claims name them."""

    name = "simulated"

    def __init__(self, gpus: int = 8, seed: int = 1, processes: int = 0) -> None:
        self.scenario = Scenario(gpus, seed, processes)
        self._loads: dict[tuple[str, int], Load] = {}
        self._pauses = SimulatedPauses()

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        self._pauses.close()

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep:
        self._follow(now.timestamp(), claims)
        paused = self._pauses.parts(x.pid for x in self._loads.values() if x.ended is None)
        waiting = {
            (claim.job_ref, claim.gpu_uuid)
            for claim in claims
            if claim.kind is ClaimKind.LLM and claim.phase in ("ready", ASLEEP)
        }
        loads = []
        for (job, gpu), load in self._loads.items():
            works = 1 - paused.get(load.pid, 0.0)
            if (job, self.scenario.uuids[gpu]) in waiting:
                works *= _WAITING_MODEL_WORKS
            loads.append(replace(load, works=works))
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
    memory_gib = claim.memory_bytes * 0.85 / GIB if claim.memory_bytes else DEFAULT_JOB_GIB
    began = claim.since.timestamp() if claim.since else t
    return Load(gpu=gpu, pid=claim.leader_pid or 0, gib=memory_gib, began=began)
