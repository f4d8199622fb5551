"""A simulated GPU server. It is pure: the same at the same instant, past or future."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from math import exp
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.gpu_states import HealthReading
from monitor.facts.readings import (
    GpuProcess,
    GpuReading,
    GpuSweep,
    Health,
    HostReading,
    Pressure,
    ProcessIdentity,
    Snapshot,
)
from monitor.facts.usage import UseSource
from monitor.gpus.sampling.probes.simulated import workloads
from monitor.gpus.sampling.probes.simulated.workloads import FIRST_PID, GIB, Script, hashed, noise

# The fifth of each eight GPUs, for 90 s every 40 minutes.
HOT_EVERY_S, HOT_FOR_S, HOT_OF_EIGHT = 2_400.0, 90.0, 4
HOT_C = 88.0
_IDLE, _POWER_CAP, _HEAT = 0x1, 0x4, 0x40
_CAPPED_W = 480.0


def with_hot_gpu(gpus: Sequence[GpuReading], t: float) -> tuple[GpuReading, ...]:
    """The GPUs, one of them too hot at times."""
    return tuple(_heated(gpu) if _is_hot(gpu, t) else gpu for gpu in gpus)


def health_readings(gpus: Sequence[GpuReading], t: float) -> tuple[HealthReading, ...]:
    """The health readings of the GPUs; a lost GPU has none."""
    return tuple(
        HealthReading(
            gpu_uuid=gpu.uuid,
            clock_reasons=_reasons(gpu, t),
            ecc_corrected=3 if gpu.index % 8 == 2 else 0,
            ecc_uncorrected=0,
            remapped_corrected=0,
            remapped_uncorrected=0,
            remap_pending=False,
            remap_failed=False,
        )
        for gpu in gpus
        if gpu.health is Health.OK
    )


def _is_hot(gpu: GpuReading, t: float) -> bool:
    phase = (t + 600 + 97 * (gpu.index // 8)) % HOT_EVERY_S
    return gpu.index % 8 == HOT_OF_EIGHT and gpu.health is Health.OK and phase < HOT_FOR_S


def _heated(gpu: GpuReading) -> GpuReading:
    return replace(gpu, temperature_c=HOT_C, sm_clock_mhz=1155)


def _reasons(gpu: GpuReading, t: float) -> int:
    if _is_hot(gpu, t):
        return _HEAT
    if not gpu.utilization_pct:
        return _IDLE
    return _POWER_CAP if (gpu.power_w or 0) > _CAPPED_W else 0


NAME = "Simulated H100 80GB"
TOTAL = 80 * GIB
RESERVED = 600 * 1024**2
IDLE_W, LIMIT_W = 68.0, 700.0
# The sixth of each eight GPUs falls off the bus for 75 s every 45 minutes.
LOST_EVERY_S, LOST_FOR_S, LOST_OF_EIGHT = 2_700.0, 75.0, 5
_GRID_S, _LAGS, _COOLING_S = 5.0, 14, 28.0
_WEIGHTS = [exp(-lag * _GRID_S / _COOLING_S) for lag in range(_LAGS)]
_WEIGHT = sum(_WEIGHTS)


class Load(Struct, frozen=True):
    """One of our own jobs on a simulated GPU, from `began` on, until `ended` where it has.

    `works`: for which part of the time; while it is paused it only holds its memory.
    """

    gpu: int
    pid: int
    gib: float
    began: float
    ended: float | None = None
    works: float = 1.0


class _Use(Struct, frozen=True):
    """Work of one process on one GPU."""

    pid: int
    demand_pct: float
    bytes: int | None
    kinds: str = "C"


class Scenario:
    """`at(now)` is the whole server at that instant; nothing is kept from call to call."""

    machine = (64, 512 * GIB)  # CPUs and memory of the host
    memory_used_part = 0.4

    def __init__(self, gpus: int = 8, seed: int = 1, processes: int = 0) -> None:
        self.size = gpus
        self.seed = seed
        self.uuids = tuple(_uuid(seed, i) for i in range(gpus))
        self._scripts: list[Script] = []
        for turn, first in enumerate(range(0, gpus, 8)):
            self._scripts += workloads.cast(first, min(8, gpus - first), turn + seed)
        self._scripts += workloads.crowd(gpus, max(0, processes - len(self._scripts)))
        self._on: list[list[int]] = [[] for _ in range(gpus)]
        for number, script in enumerate(self._scripts):
            for gpu in script.gpus:
                self._on[gpu].append(number)
        self._memo: OrderedDict[tuple[int, int], float] = OrderedDict()

    def at(self, now: datetime, loads: Sequence[Load] = ()) -> GpuSweep:
        """Everything a probe would see at `now`, with our own jobs' loads added."""
        t = now.timestamp()
        readings: list[GpuReading] = []
        processes: list[GpuProcess] = []
        for gpu in range(self.size):
            if self._is_lost(gpu, t):
                readings.append(self._lost(gpu))
                continue
            uses = self._uses(gpu, t, loads)
            busy = _busy(uses)
            readings.append(self._reading(gpu, t, busy, uses, loads))
            processes += self._processes(gpu, busy, uses)
        pids = {process.pid for process in processes}
        return GpuSweep(
            gpus=with_hot_gpu(readings, t),
            processes=tuple(processes),
            identities=self._identities(t, pids),
            health=health_readings(readings, t),
        )

    def snapshot(self, now: datetime, host: str, seq: int = 0) -> Snapshot:
        """The server as a snapshot with a simulated host, for a past without readings."""
        sweep = self.at(now)
        return Snapshot(
            seq=seq, at=now, probe="simulated", host=self.host(now, host), gpus=sweep.gpus
        )

    def host(self, now: datetime, name: str) -> HostReading:
        """A host that works as hard as its GPUs make it."""
        t = now.timestamp()
        cpu = 18 + 30 * noise(t, 40, self.seed, 501) + 8 * noise(t, 5, self.seed, 502)
        cpus, total = self.machine
        used = int(self.memory_used_part * (0.85 + 0.3 * noise(t, 600, self.seed, 503)) * total)
        return HostReading(
            name=name,
            cpu_count=cpus,
            cpu_pct=round(cpu, 1),
            load_1=round(cpu / 100 * cpus, 2),
            memory_total_bytes=total,
            memory_available_bytes=total - used,
            swap_total_bytes=0,
            swap_used_bytes=0,
            disk_read_bps=round(4e8 * noise(t, 15, self.seed, 504) ** 2),
            disk_write_bps=round(2e8 * noise(t, 25, self.seed, 505) ** 4),
            pressure=Pressure(
                cpu_some_pct=round(cpu / 30, 2), memory_some_pct=0.0, io_some_pct=round(cpu / 60, 2)
            ),
        )

    def _is_lost(self, gpu: int, t: float) -> bool:
        phase = (t + 1_300 + 131 * (gpu // 8)) % LOST_EVERY_S
        return gpu % 8 == LOST_OF_EIGHT and phase < LOST_FOR_S

    def _lost(self, gpu: int) -> GpuReading:
        return GpuReading(
            uuid=self.uuids[gpu],
            index=gpu,
            name=NAME,
            pci_id=_pci_id(gpu),
            health=Health.LOST,
            problem="The GPU has fallen off the bus (simulated).",
            memory_total_bytes=TOTAL,
            power_limit_w=LIMIT_W,
            compute_capability="9.0",
        )

    def _reading(
        self, gpu: int, t: float, busy: float, uses: Sequence[_Use], loads: Sequence[Load]
    ) -> GpuReading:
        used = sum(use.bytes or 0 for use in uses)
        power = _power(busy, noise(t, 2, self.seed, gpu, 91))
        heat = self._heat(gpu, t, loads)
        return GpuReading(
            uuid=self.uuids[gpu],
            index=gpu,
            name=NAME,
            pci_id=_pci_id(gpu),
            memory_total_bytes=TOTAL,
            memory_used_bytes=used,
            memory_reserved_bytes=RESERVED,
            utilization_pct=float(round(busy)),
            memory_utilization_pct=float(round(busy * 0.55)),
            power_w=round(power, 1),
            power_limit_w=LIMIT_W,
            temperature_c=float(round(27 + 4 * hashed(self.seed, gpu, 7) + 0.46 * heat)),
            sm_clock_mhz=_clock(busy, power, bool(uses)),
            memory_clock_mhz=2619,
            performance_state=0,
            compute_capability="9.0",
            cores=16896,
            max_sm_clock_mhz=1980,
        )

    def _uses(self, gpu: int, t: float, loads: Sequence[Load]) -> list[_Use]:
        """The processes on this GPU; together they never exceed its memory."""
        uses: list[_Use] = []
        free = TOTAL - RESERVED
        for number in self._on[gpu]:
            use = self._script_use(number, gpu, t)
            if use is not None and (use.bytes or 0) <= free:
                free -= use.bytes or 0
                uses.append(use)
        for load in loads:
            if load.gpu == gpu and load.began <= t and (load.ended is None or t < load.ended):
                use = self._job_use(load, t, free)
                free -= use.bytes or 0
                uses.append(use)
        return uses

    def _script_use(self, number: int, gpu: int, t: float) -> _Use | None:
        script = self._scripts[number]
        run = script.run_at(t)
        if run is None:
            return None
        age = t - run[1]
        wobble = noise(t, 9, self.seed, number, gpu)
        held = None if script.gib is None else _ramped(script.gib, age, script.ramp_s)
        return _Use(pid_of(number, run[0]), script.shape(age, wobble), held, script.kinds)

    def _job_use(self, load: Load, t: float, free: int) -> _Use:
        age = t - load.began
        wobble = noise(t, 4, self.seed, load.pid, load.gpu)
        held = min(free, _ramped(load.gib, age, 15))
        return _Use(load.pid, load.works * workloads.job(age, wobble), held)

    def _heat(self, gpu: int, t: float, loads: Sequence[Load]) -> float:
        """How much of full load the heat sink has taken up lately, percent."""
        step = int(t // _GRID_S)
        part = t / _GRID_S - step
        return (1 - part) * self._heat_at(gpu, step - 1, loads) + part * self._heat_at(
            gpu, step, loads
        )

    def _heat_at(self, gpu: int, step: int, loads: Sequence[Load]) -> float:
        heat = 0.0
        for lag, weight in enumerate(_WEIGHTS):
            heat += weight * self._busy_at(gpu, step - lag, loads)
        return heat / _WEIGHT

    def _busy_at(self, gpu: int, step: int, loads: Sequence[Load]) -> float:
        if any(load.gpu == gpu for load in loads):
            return _busy(self._uses(gpu, step * _GRID_S, loads))
        key = (gpu, step)
        if key not in self._memo:
            self._memo[key] = _busy(self._uses(gpu, step * _GRID_S, ()))
            while len(self._memo) > 40 * self.size:
                self._memo.popitem(last=False)
        return self._memo[key]

    def _processes(self, gpu: int, busy: float, uses: Sequence[_Use]) -> list[GpuProcess]:
        """Shares of the GPU that never add up to more than it did."""
        demand = sum(use.demand_pct for use in uses)
        scale = busy / demand if demand else 0.0
        return [
            GpuProcess(
                gpu_uuid=self.uuids[gpu],
                pid=use.pid,
                memory_bytes=use.bytes,
                sm_pct=round(use.demand_pct * scale, 1),
                source=UseSource.PROCESSES_INFO,
                kinds=use.kinds,
            )
            for use in uses
        ]

    def _identities(self, t: float, pids: set[int]) -> dict[int, ProcessIdentity]:
        identities: dict[int, ProcessIdentity] = {}
        for number, script in enumerate(self._scripts):
            run = script.run_at(t)
            if run is None or script.user is None or pid_of(number, run[0]) not in pids:
                continue
            pid = pid_of(number, run[0])
            identities[pid] = ProcessIdentity(
                pid=pid,
                start_ticks=int(run[1] * 100),
                created_at=datetime.fromtimestamp(run[1], UTC),
                uid=2000 + sum(script.user.encode()) % 1000,
                user=script.user,
                program=script.program,
                command=tuple(script.command.split()),
                session=pid,
            )
        return identities


def _busy(uses: Sequence[_Use]) -> float:
    """How busy a GPU is when several want it: they overlap, so it is less than the sum."""
    left = 1.0
    for use in uses:
        left *= 1 - use.demand_pct / 100
    return 100 * (1 - left)


def _ramped(gib: float, age: float, ramp_s: float) -> int:
    return int(GIB * gib * min(1.0, 0.08 + 0.92 * age / ramp_s))


def _power(busy: float, wobble: float) -> float:
    work: float = (busy / 100) ** 0.85 * (0.94 + 0.06 * wobble)
    return IDLE_W + (LIMIT_W * 0.94 - IDLE_W) * work


def _clock(busy: float, power: float, used: bool) -> int:
    if not used:
        return 345
    return 1980 - 15 * round(max(0.0, power - 480) / 16) if busy > 0 else 1980


def pid_of(number: int, run: int) -> int:
    return FIRST_PID + number * 1000 + run % 1000


def _pci_id(gpu: int) -> str:
    return f"00000000:{(gpu + 1) * 3 % 256:02X}:00.0"


def _uuid(seed: int, gpu: int) -> str:
    words = [int(hashed(seed, gpu, part) * 2**32) for part in range(1, 5)]
    return f"GPU-{UUID(bytes=b''.join(word.to_bytes(4, 'big') for word in words))}"
