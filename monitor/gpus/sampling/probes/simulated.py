"""A simulated GPU server: scripted loads, the scenario, and the probe that reads it.

Loads and scenario are pure functions of time: the same at the same instant, past or future.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from math import exp, floor
from pathlib import Path
from threading import Event, Lock, Thread
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import ASLEEP, ClaimFact, ClaimKind
from monitor.facts.gpus import HealthReading
from monitor.facts.readings import (
    GpuProcess,
    GpuReading,
    GpuSweep,
    Health,
    HostReading,
    Pressure,
    ProcessIdentity,
    Snapshot,
    UseSource,
)

GIB = 1024**3
# Above the kernel's highest possible pid: a simulated process can't be taken for a real one.
FIRST_PID = 4_194_305

WEEK_S = 7 * 86_400.0
# A week of the scripts that never rest begins in the night to Sunday (UTC).
WEEK_OFFSET_S = 3 * 86_400.0

# demand in percent of one GPU: (seconds since the process began, noise 0..1) -> 0..100
Shape = Callable[[float, float], float]


class Script(Struct, frozen=True):
    """A program that is started again and again: it runs `runs_s` of every `every_s` seconds."""

    user: str | None
    program: str
    command: str
    gpus: tuple[int, ...]
    gib: float | None
    shape: Shape
    every_s: float = WEEK_S
    runs_s: float = WEEK_S
    offset_s: float = WEEK_OFFSET_S
    ramp_s: float = 20.0
    kinds: str = "C"

    def run_at(self, t: float) -> tuple[int, float] | None:
        """The number of the run that goes on at `t` and when it began; None between runs."""
        number = floor((t - self.offset_s) / self.every_s)
        began = number * self.every_s + self.offset_s
        return (number, began) if t - began < self.runs_s else None


# Noise asks for the same few numbers again and again.
@lru_cache(maxsize=4096)
def hashed(*parts: int) -> float:
    """A number 0..1 that depends on the parts alone: the same in each process and at each call."""
    value = 0x9E3779B97F4A7C15
    for part in parts:
        value = ((value ^ part) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 29
    return (value >> 11) / (1 << 53)


def noise(t: float, period_s: float, *key: int) -> float:
    """Smooth noise 0..1 that takes about `period_s` to change."""
    step = floor(t / period_s)
    part = t / period_s - step
    weight = part * part * (3 - 2 * part)
    return hashed(*key, step) * (1 - weight) + hashed(*key, step + 1) * weight


def training(age: float, wobble: float) -> float:
    """Epochs: minutes near full load, then a pause for validation and the checkpoint."""
    if age < 25:
        return 4 * wobble
    return 8 + 14 * wobble if age % 210 > 195 else 86 + 12 * wobble


def hog(age: float, wobble: float) -> float:
    return 93 + 5 * wobble


def idle(age: float, wobble: float) -> float:
    return 0.0


def inference(age: float, wobble: float) -> float:
    """Requests in bursts: nothing for a while, then up to two thirds of the GPU."""
    return max(0.0, 130 * wobble - 62)


def serving(age: float, wobble: float) -> float:
    return 12 + 45 * wobble


def visitor(age: float, wobble: float) -> float:
    return 20 + 50 * wobble if age > 6 else 0.0


def job(age: float, wobble: float) -> float:
    """Work of one of our own jobs: it loads for 3 s, then works."""
    return 0.0 if age < 3 else 78 + 18 * wobble


# The pattern of eight GPUs, by index; 0 and 7 stay nearly free.
_PATTERN = (
    Script(
        "frank",
        "python3",
        "python3 notebooks/try_resnet.py --quick",
        (0,),
        3.5,
        visitor,
        every_s=300,
        runs_s=75,
        offset_s=0,
        ramp_s=4,
    ),
    Script(
        "alice",
        "python",
        "python train.py --config configs/vit_large.yaml --resume",
        (1,),
        58,
        training,
        every_s=14_400,
        runs_s=13_800,
        offset_s=0,
    ),
    Script(
        "frank",
        "pytest",
        "pytest tests/gpu -x",
        (1,),
        1.2,
        visitor,
        every_s=420,
        runs_s=40,
        offset_s=60,
        ramp_s=2,
    ),
    Script(
        "bob",
        "torchrun",
        "torchrun --nproc-per-node 2 finetune.py --model llama-8b --bf16",
        (2, 3),
        66,
        training,
        every_s=2_400,
        runs_s=1_860,
        offset_s=300,
    ),
    Script("dana", "python", "python sweep.py --trials 4096 --no-early-stop", (4,), 71, hog),
    Script(
        "erin",
        "python",
        "/opt/conda/bin/python -m ipykernel_launcher -f kernel-7f2c.json",
        (5,),
        40,
        idle,
    ),
    Script(
        "charlie",
        "python",
        "python -m batch_infer --model whisper-large-v3 --input calls/",
        (5,),
        14,
        inference,
        every_s=3_600,
        runs_s=3_300,
        offset_s=120,
    ),
    Script(
        "llm",
        "vllm",
        "vllm serve mistral-24b --port 8011 --gpu-memory-utilization 0.6",
        (6,),
        46,
        serving,
    ),
    # In a container with its own pids, so its owner is unknown.
    Script(None, "", "", (6,), 6, serving),
)


def cast(first: int, size: int, turn: int) -> list[Script]:
    """The scripts of GPUs first … first + size - 1 (size <= 8); `turn` shifts their clocks."""
    moved = [
        replace(
            script,
            gpus=tuple(first + offset for offset in script.gpus if offset < size),
            offset_s=script.offset_s + 977.0 * turn,
        )
        for script in _PATTERN
    ]
    return [script for script in moved if script.gpus]


def crowd(gpus: int, count: int) -> list[Script]:
    """`count` small processes over all GPUs, to see how a busy machine looks."""
    users = ("alice", "bob", "charlie", "dana", "erin", "frank")
    return [
        Script(
            users[i % len(users)],
            "python",
            f"python worker.py --shard {i}",
            (i % gpus,),
            0.1,
            idle if i % 3 else inference,
            every_s=1_800.0 + 13 * (i % 50),
            runs_s=1_785.0 + 13 * (i % 50),
            offset_s=37.0 * i,
            ramp_s=3,
        )
        for i in range(count)
    ]


# The fifth of each eight GPUs, for 90 s every 40 minutes.
HOT_EVERY_S, HOT_FOR_S, HOT_OF_EIGHT = 2_400.0, 90.0, 4
HOT_C = 88.0
_IDLE, _POWER_CAP, _HEAT = 0x1, 0x4, 0x40
_CAPPED_W = 480.0


def with_hot_gpu(gpus: Sequence[GpuReading], t: float) -> tuple[GpuReading, ...]:
    """The GPUs, one of them too hot at times."""
    return tuple(
        replace(gpu, temperature_c=HOT_C, sm_clock_mhz=1155) if _is_hot(gpu, t) else gpu
        for gpu in gpus
    )


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
            self._scripts += cast(first, min(8, gpus - first), turn + seed)
        self._scripts += crowd(gpus, max(0, processes - len(self._scripts)))
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
        return _Use(load.pid, load.works * job(age, wobble), held)

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
