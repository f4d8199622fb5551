"""What of a sweep is worth an event, and when NVML is left alone for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from monitor.gpu_states import GpuState
from monitor.policy.orphans import became_lasting
from monitor.policy.states import BROKEN, StateChange
from monitor.readings import GpuReading, Snapshot

# More failures than this in a row: sweeps stop, and one try a minute is left.
MAX_FAILURES = 10
SLOW_RETRY = timedelta(seconds=60)
# A change between idle and busy is told when what was before had lasted this long.
LASTING = timedelta(minutes=5)
# An operator's pause and a GPU's condition have events of their own.
TOLD_ELSEWHERE = {GpuState.PAUSED, GpuState.THROTTLED}
# Of one kind and GPU, at most so many in so long.
FLOOD_LIMIT, FLOOD_WINDOW = 5, timedelta(minutes=10)
# More of one kind in one sweep are told together.
TOGETHER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An event to be."""

    kind: str
    text: str
    severity: str = "info"
    gpu_uuid: str = ""
    job_ref: str = ""
    owner: str = ""


def may_sweep(failures: int, tried_at: datetime | None, now: datetime) -> bool:
    """Whether GPUs are to be read now, or left alone after too many failures."""
    return failures <= MAX_FAILURES or tried_at is None or now - tried_at >= SLOW_RETRY


def of_sweep(old: Snapshot | None, new: Snapshot, changes: Iterable[StateChange]) -> list[Note]:
    """Events of this sweep. Where no GPU could be read, that alone is told, not each GPU."""
    notes = list(_about_probe(old, new))
    if new.failures or (old is not None and old.failures):
        return notes
    news = old is not None and bool(old.gpus)
    told = [note for change in changes if (note := _about_gpu(change, new.at, news))]
    return notes + together([*told, *_about_orphans(old, new)])


def together(told: Sequence[Note]) -> list[Note]:
    """Many GPUs with one fate at once make one note."""
    alike: dict[tuple[str, str], list[Note]] = {}
    for note in told:
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
    """Memory that nobody on the list holds, once it has lasted."""
    for gpu in new.gpus:
        if old is not None and became_lasting(gpu, old.at, new.at):
            size = (gpu.orphaned_bytes or 0) / 1024**3
            text = (
                f"{size:.0f} GiB of GPU {gpu.index}'s memory are held by no process that is listed:"
                " left behind by one that died, or hidden from the driver's list."
            )
            yield _note("ORPHANED_MEMORY", text, gpu, "warning")


def _about_gpu(change: StateChange, now: datetime, news: bool) -> Note | None:
    """`news`: other GPUs were known already, so a new one has been added since."""
    gpu, was = change.reading, change.was
    name = f"GPU {gpu.index}" + (f" ({gpu.name})" if gpu.name else "")
    if gpu.state is GpuState.LOST:
        text = f"{name} is lost. {gpu.problem or ''}".strip()
        return _note("GPU_LOST", text, gpu, "error")
    if was is GpuState.LOST:
        return _note("GPU_FOUND", f"{name} is back.", gpu)
    if was is None:
        return _note("GPU_FOUND", f"{name} is new here.", gpu) if news else None
    if gpu.state is GpuState.FAILING:
        text = f"{name} is failing. {gpu.problem or ''}".strip()
        return _note("GPU_STATE_CHANGED", text, gpu, "warning")
    if {was, gpu.state} & TOLD_ELSEWHERE:
        return None
    if was in BROKEN or _lasted(change, now):
        text = f"{name} is {_word(gpu.state)} now; it was {_word(was)}."
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
    GpuState.LLM_READY: "holding a model ready",
    GpuState.LLM_BUSY: "running a model",
    GpuState.COOLING: "giving back a job's memory",
    GpuState.EXTERNAL: "used from outside the queue",
    GpuState.FAILING: "failing",
}


def _word(state: GpuState | None) -> str:
    return _WORDS.get(state, str(state)) if state else "unknown"
