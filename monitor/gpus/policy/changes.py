"""The events of a sweep, GPUs missing from it, and pauses after NVML reads that failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.gpus import GpuState
from monitor.facts.readings import GpuReading, GpuSweep, Health, ProcessReading, Snapshot
from monitor.gpus.policy.states import BROKEN, StateChange, became_lasting

# After this many failures in a row, GPUs are read only once per SLOW_RETRY.
MAX_FAILURES = 10
SLOW_RETRY = timedelta(seconds=60)
# A change between idle and busy is an event if the previous state lasted this long.
LASTING = timedelta(minutes=5)
# Pauses by operators and conditions of GPUs have their own events.
TOLD_ELSEWHERE = {GpuState.PAUSED, GpuState.THROTTLED}
# Maximum number of events of one kind and GPU in the window.
FLOOD_LIMIT, FLOOD_WINDOW = 5, timedelta(minutes=10)
# More events of one kind in one sweep are combined into one.
TOGETHER = 4


class Note(Struct, frozen=True, kw_only=True):
    """An event that is not stored yet."""

    kind: str
    text: str
    severity: str = "info"
    gpu_uuid: str = ""
    job_ref: str = ""
    owner: str = ""
    # For the log line only.
    figures: Mapping[str, float] = field(default_factory=dict)


def may_sweep(failures: int, tried_at: datetime | None, now: datetime) -> bool:
    """Whether GPUs are read now; after too many failures, only once per SLOW_RETRY."""
    return failures <= MAX_FAILURES or tried_at is None or now - tried_at >= SLOW_RETRY


def of_sweep(old: Snapshot | None, new: Snapshot, changes: Iterable[StateChange]) -> list[Note]:
    """Events of this sweep. If no GPU could be read, that is the only event."""
    notes = list(_about_probe(old, new))
    if new.failures or (old is not None and old.failures):
        return notes
    has_before = old is not None and bool(old.gpus)
    gpu_notes = [note for change in changes if (note := _about_gpu(change, new.at, has_before))]
    return notes + together([*gpu_notes, *_about_orphans(old, new)])


def together(single_notes: Sequence[Note]) -> list[Note]:
    """Combine many events of the same kind into one."""
    alike: dict[tuple[str, str], list[Note]] = {}
    for note in single_notes:
        alike.setdefault((note.kind, note.severity), []).append(note)
    return [
        note
        for notes in alike.values()
        for note in (notes if len(notes) <= TOGETHER else [_sum(notes)])
    ]


def _sum(notes: Sequence[Note]) -> Note:
    first = notes[0]
    return replace(first, text=f"{len(notes)} GPUs at once, such as: {first.text}", gpu_uuid="")


def _about_probe(old: Snapshot | None, new: Snapshot) -> Iterator[Note]:
    before = old.problem if old is not None and old.probe == new.probe else None
    if new.problem and new.problem != before:
        text = f"{new.problem} {new.remedy or ''}".strip()
        yield Note(kind="NVML_UNAVAILABLE", text=text, severity="warning")
    elif before and not new.problem:
        yield Note(kind="NVML_AVAILABLE", text="GPUs can be read again.")
    if (old.failures if old else 0) <= MAX_FAILURES < new.failures:
        text = f"GPUs could not be read {new.failures} times in a row; now tried once a minute."
        yield Note(kind="NVML_MONITORING_OFF", text=text, severity="error")


def _about_orphans(old: Snapshot | None, new: Snapshot) -> Iterator[Note]:
    """Events of memory that no listed process holds, once it has lasted."""
    for gpu in new.gpus:
        if old is not None and became_lasting(gpu, old.at, new.at):
            size = (gpu.orphaned_bytes or 0) / 1024**3
            text = (
                f"{size:.0f} GiB of GPU {gpu.index} are in use by no visible process: a process"
                " died and left them behind, or the driver does not list it."
            )
            yield _note("ORPHANED_MEMORY", text, gpu, "warning")


def _about_gpu(change: StateChange, now: datetime, has_before: bool) -> Note | None:
    """`news`: other GPUs were already known, so this one was added."""
    gpu, was = change.reading, change.was
    name = f"GPU {gpu.index}" + (f" ({gpu.name})" if gpu.name else "")
    if gpu.state is GpuState.LOST:
        text = f"{name} is lost. {gpu.problem or ''}".strip()
        return _note("GPU_LOST", text, gpu, "error")
    if was is GpuState.LOST:
        return _note("GPU_FOUND", f"{name} is back.", gpu)
    if was is None:
        return _note("GPU_FOUND", f"{name} was added.", gpu) if has_before else None
    if gpu.state is GpuState.FAILING:
        text = f"{name} is failing. {gpu.problem or ''}".strip()
        return _note("GPU_STATE_CHANGED", text, gpu, "warning")
    if {was, gpu.state} & TOLD_ELSEWHERE:
        return None
    if was in BROKEN or _lasted(change, now):
        text = f"{name}: {_word(was)} → {_word(gpu.state)}"
        return _note("GPU_STATE_CHANGED", text, gpu)
    return None


def _lasted(change: StateChange, now: datetime) -> bool:
    since = change.old.state_since if change.old else None
    return since is not None and now - since >= LASTING


def _note(kind: str, text: str, gpu: GpuReading, severity: str = "info") -> Note:
    return Note(kind=kind, text=text, severity=severity, gpu_uuid=gpu.uuid)


_WORDS = {
    GpuState.IDLE: "idle",
    GpuState.BOOTING_SCRIPT: "starting a job",
    GpuState.BOOTING_LLM: "loading a model",
    GpuState.SCRIPT_BUSY: "running a job",
    GpuState.LLM_READY: "model ready",
    GpuState.LLM_BUSY: "running a model",
    GpuState.COOLING: "releasing memory",
    GpuState.EXTERNAL: "in use outside the queue",
    GpuState.FAILING: "failing",
}


def _word(state: GpuState | None) -> str:
    return _WORDS.get(state, str(state)) if state else "unknown"


FORGET_AFTER = timedelta(days=1)
NOT_LISTED = "The driver does not list this GPU any more."
# After the loss of a GPU, the driver may number the others anew.
OTHER_NUMBER = " Another GPU has the number {} now."
_STATIC = ("name", "pci_id", "memory_total_bytes", "power_limit_w", "compute_capability")


def complete(
    sweep: GpuSweep, before: Mapping[str, GpuReading], now: datetime
) -> tuple[GpuReading, ...]:
    """All GPUs of the sweep and those missing from it, by index.

    If no GPU could be read, the missing ones are failing, for the sweep's reason: most likely they
    still exist. A GPU that has been lost for a day is forgotten.
    """
    present_gpus = [_with_facts(gpu, before.get(gpu.uuid)) for gpu in sweep.gpus]
    present = {gpu.uuid for gpu in present_gpus}
    gone = [g for g in before.values() if g.uuid not in present and not _forgotten(g, now)]
    numbers = {gpu.index for gpu in present_gpus}
    present_gpus += [_missing(old, sweep, numbers) for old in gone]
    return tuple(sorted(present_gpus, key=lambda gpu: (gpu.index, gpu.uuid)))


def explained(sweep: GpuSweep, gpus: Collection[GpuReading]) -> GpuSweep:
    """The sweep without its problem, if that concerns GPUs that are listed as lost."""
    missing = len(gpus) - len(sweep.gpus)
    if sweep.gpus and sweep.unnamed and missing >= sweep.unnamed:
        return replace(sweep, problem=None, remedy=None)
    return sweep


def _missing(old: GpuReading, sweep: GpuSweep, numbers: Collection[int]) -> GpuReading:
    """numbers: those of the GPUs that the driver lists."""
    health = Health.LOST if sweep.gpus or not sweep.problem else Health.FAILING
    # The problem reported when it was lost is more specific than NOT_LISTED.
    known_problem = old.problem if old.health is health else None
    problem = f"{sweep.problem} {sweep.remedy or ''}".strip() if sweep.problem else known_problem
    problem = problem or NOT_LISTED
    renumbered = OTHER_NUMBER.format(old.index)
    if old.index in numbers and renumbered not in problem:
        problem += renumbered
    reading = GpuReading(uuid=old.uuid, index=old.index, health=health, problem=problem)
    return _with_facts(reading, old)


def _with_facts(gpu: GpuReading, old: GpuReading | None) -> GpuReading:
    """A GPU that does not respond keeps its name and size."""
    if old is None or gpu.health is Health.OK:
        return gpu
    return replace(
        gpu,
        **{
            name: getattr(old, name) if getattr(gpu, name) is None else getattr(gpu, name)
            for name in _STATIC
        },
    )


def _forgotten(old: GpuReading, now: datetime) -> bool:
    lost = old.state is GpuState.LOST and old.state_since is not None
    return lost and now - (old.state_since or now) > FORGET_AFTER


# Division of GPU use between jobs of gpucoord and all other processes.


class UseSplit(Struct, frozen=True):
    """Percent of a GPU's time, or of all GPUs of a host. None = unknown, 0 = known idle."""

    jobs_pct: float | None
    others_pct: float | None


UNKNOWN = UseSplit(None, None)
# Below it, a GPU without processes is idle: its reading is a mean of the last second.
BUSY_PCT = 5.0


def by_gpu(snapshot: Snapshot) -> dict[str, UseSplit]:
    """The split of each GPU, by UUID.

    Unknown if the driver does not report the GPU's use, or lists no process on a busy GPU.
    """
    on: dict[str, list[ProcessReading]] = {gpu.uuid: [] for gpu in snapshot.gpus}
    for process in snapshot.processes:
        on.setdefault(process.gpu_uuid, []).append(process)
    return {
        gpu.uuid: _split(on[gpu.uuid]) if _is_measured(gpu, on[gpu.uuid]) else UNKNOWN
        for gpu in snapshot.gpus
    }


def of_host(snapshot: Snapshot) -> UseSplit:
    """The mean over the GPUs of the host. Unknown as soon as one GPU's is."""
    splits = by_gpu(snapshot).values()
    return UseSplit(_mean(s.jobs_pct for s in splits), _mean(s.others_pct for s in splits))


def _is_measured(gpu: GpuReading, processes: Sequence[ProcessReading]) -> bool:
    if gpu.health is not Health.OK or gpu.utilization_pct is None:
        return False
    return bool(processes) or gpu.utilization_pct < BUSY_PCT


def _split(processes: Iterable[ProcessReading]) -> UseSplit:
    # A process with several contexts on one GPU is one process: its share counts once.
    by_pid = {process.pid: process for process in processes}
    return UseSplit(
        _sum_known(p.sm_pct for p in by_pid.values() if p.job_ref is not None),
        _sum_known(p.sm_pct for p in by_pid.values() if p.job_ref is None),
    )


def _sum_known(shares: Iterable[float | None]) -> float | None:
    total = 0.0
    for share in shares:
        if share is None:
            return None
        total += share
    return min(total, 100.0)


def _mean(shares: Iterable[float | None]) -> float | None:
    values = list(shares)
    total = 0.0
    for share in values:
        if share is None:
            return None
        total += share
    return total / len(values) if values else None
