"""Sweep checks: impossible values and jumps, double process lines, rates between snapshots.

A driver may report infinite or absurd numbers, NUL characters, very long names, or a UUID twice.
Only the affected values or items are left out. A pid of one GPU stands once and its memory counts
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import fields, replace

from monitor.facts.gpus import BOUNDS, HOST_BOUNDS, JUMPS, MOST_JOULES_PER_S, MOST_OVER_LIMIT
from monitor.facts.readings import (
    GPU_FIELDS,
    GpuProcess,
    GpuReading,
    GpuSweep,
    HostReading,
    Snapshot,
    idle_since,
)

# Each slice of the sampler opens the driver again. Only a longer break is a start.
START_AFTER = timedelta(seconds=15)


class StartLine(Struct, frozen=True):
    """A log line with its stable name. more: its fields in JSON."""

    kind: str
    text: str
    more: Mapping[str, object]


def start_lines(
    snapshot: Snapshot, last: Snapshot | None, versions: Sequence[str]
) -> list[StartLine]:
    """Empty while GPUs cannot be read, or could be read a moment ago. `last` is the one before."""
    if snapshot.probe != "nvml" or snapshot.problem is not None or not snapshot.gpus:
        return []
    was_readable = last is not None and last.problem is None and last.probe == "nvml"
    if last is not None and was_readable and snapshot.at - last.at <= START_AFTER:
        return []
    count = f"{len(snapshot.gpus)} GPU{'s' if len(snapshot.gpus) != 1 else ''}"
    gpus = {"gpus": len(snapshot.gpus)}
    seen = {
        "gpu_device": ",".join(str(gpu.index) for gpu in snapshot.gpus),
        "other_processes": sum(process.job_ref is None for process in snapshot.processes),
    }
    return [
        StartLine("NVML_INITIALIZED", f"NVML initialized: {', '.join((*versions, count))}", gpus),
        StartLine("PROCESS_DETECTION_ACTIVE", "GPU process detection active", {**gpus, **seen}),
    ]


def with_rates(host: HostReading, last: Snapshot | None, now: datetime) -> HostReading:
    """The reading with means since the last snapshot; unknown after a restart of the machine."""
    if last is None or last.host.boot_id != host.boot_id or now <= last.at:
        return host
    old, new = last.host.counters, host.counters
    passed = (now - last.at).total_seconds()
    cpu_pct = _share(
        _grown(old.cpu_busy_s, new.cpu_busy_s), _grown(old.cpu_total_s, new.cpu_total_s)
    )
    return replace(
        host,
        cpu_pct=cpu_pct,
        # The share is a mean of the whole time since the last reading.
        cpu_idle_since=idle_since(cpu_pct, last.host.cpu_idle_since, last.at),
        disk_read_bps=_rate(_grown(old.disk_read_bytes, new.disk_read_bytes), passed),
        disk_write_bps=_rate(_grown(old.disk_written_bytes, new.disk_written_bytes), passed),
    )


def _grown(old: float | None, new: float | None) -> float | None:
    """Unknown if the counter went backwards, as after a disk was removed."""
    return None if old is None or new is None or new < old else new - old


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(min(100.0, 100 * part / whole), 1)


def _rate(amount: float | None, seconds: float) -> float | None:
    return None if amount is None else float(round(amount / seconds))


T = TypeVar("T")
# JSON readers keep integers exact up to here; as bytes it is 8 PiB.
LARGEST_INT = 2**53
LARGEST_FLOAT = 1e15
_INT_RANGE, _FLOAT_RANGE = (0, LARGEST_INT), (-LARGEST_FLOAT, LARGEST_FLOAT)
LONGEST_TEXT = 500
# The narrower columns.
LONGEST = {"name": 120, "pci_id": 40, "compute_capability": 8}
# A shortened UUID would name another GPU.
UUIDS, LONGEST_UUID = ("uuid", "gpu_uuid"), 96
_GPU_BOUNDS = {**BOUNDS, **{field.name: field.bounds for field in GPU_FIELDS}}


def bounded_sweep(sweep: GpuSweep) -> GpuSweep:
    """Unusable values become None; an item that needs such a value is left out."""
    gpus = _distinct(_bounded(sweep.gpus, _GPU_BOUNDS))
    left_out = len(sweep.gpus) - len(gpus)
    problem, remedy = sweep.problem, sweep.remedy
    if left_out and problem is None:
        problem = "The driver reports a GPU without a usable UUID and index."
        remedy = "Compare with nvidia-smi -L, and reload or update the driver."
    return replace(
        sweep,
        gpus=tuple(map(_plausible, gpus)),
        unnamed=sweep.unnamed + left_out,
        problem=problem,
        remedy=remedy,
        health=_bounded(sweep.health),
        processes=_bounded(sweep.processes),
        ended=_bounded(sweep.ended),
        instances=_bounded(sweep.instances),
        xids=_bounded(sweep.xids),
    )


def bounded_host(host: HostReading) -> HostReading:
    """Unusable values become None; a disk without usable figures is left out."""
    bounded = _bounded((host,), HOST_BOUNDS)[0]
    return replace(
        bounded,
        disks=_bounded(host.disks, HOST_BOUNDS),
        pressure=_bounded((host.pressure,), HOST_BOUNDS)[0],
        counters=_bounded((host.counters,), HOST_BOUNDS)[0],
    )


def _plausible(gpu: GpuReading) -> GpuReading:
    """The reading without values that contradict others of it."""
    total, used = gpu.memory_total_bytes, gpu.memory_used_bytes
    if total is not None and used is not None and used > total:
        gpu = replace(gpu, memory_used_bytes=None, memory_reserved_bytes=None)
    power, limit = gpu.power_w, gpu.power_limit_w
    if power is not None and limit is not None and power > MOST_OVER_LIMIT * limit:
        gpu = replace(gpu, power_w=None)
    return gpu


class JumpFilter:
    """Takes a reading that jumps as unknown, until the next sweep confirms it.

    Its memory is the sweep before; after a start nothing is a jump.
    """

    def __init__(self) -> None:
        self._last: dict[str, GpuReading] = {}
        self._at: datetime | None = None

    def confirmed(self, gpus: Sequence[GpuReading], now: datetime) -> tuple[GpuReading, ...]:
        """The readings of this sweep without unconfirmed values."""
        passed = (now - self._at).total_seconds() if self._at else 0.0
        last, self._at = self._last, now
        self._last = {gpu.uuid: gpu for gpu in gpus}
        return tuple(_without_jumps(gpu, last.get(gpu.uuid), passed) for gpu in gpus)


def _without_jumps(gpu: GpuReading, old: GpuReading | None, passed: float) -> GpuReading:
    """Values that jumped since `old`, `passed` seconds ago, are None."""
    if old is None:
        return gpu
    jumped: dict[str, Any] = {
        name: None
        for name, most in JUMPS.items()
        if _differs(getattr(gpu, name), getattr(old, name), most)
    }
    if gpu.energy_mj is not None and old.energy_mj is not None:
        joules = (gpu.energy_mj - old.energy_mj) / 1000
        # The counter is not read at the very begin of a sweep.
        if not 0 <= joules <= MOST_JOULES_PER_S * (passed + 1):
            jumped["energy_mj"] = None
    return replace(gpu, **jumped) if jumped else gpu


def _differs(new: float | None, old: float | None, most: float) -> bool:
    return new is not None and old is not None and abs(new - old) > most


def _distinct(gpus: Iterable[GpuReading]) -> tuple[GpuReading, ...]:
    """Of several readings with one UUID the first."""
    by_uuid: dict[str, GpuReading] = {}
    for gpu in gpus:
        by_uuid.setdefault(gpu.uuid, gpu)
    return tuple(by_uuid.values())


def _bounded(
    items: tuple[T, ...], bounds: Mapping[str, tuple[float, float]] = BOUNDS
) -> tuple[T, ...]:
    if not items:
        return items
    item_type: Any = type(items[0])
    names = _fields(item_type)
    bounded = []
    for item in items:
        changes: dict[str, Any] = {}
        for name, is_required in names:
            value = getattr(item, name)
            kind = type(value)
            if kind is int:
                low, high = bounds.get(name, _INT_RANGE)
                if low <= value <= high:
                    continue
                usable = None
            elif kind is float:
                low, high = bounds.get(name, _FLOAT_RANGE)
                # False for NaN, too.
                if low <= value <= high:
                    continue
                usable = None
            elif kind is str:
                usable = _usable_text(name, value)
                if usable is value:
                    continue
            else:
                continue
            if usable is None and is_required:
                break
            changes[name] = usable
        else:
            bounded.append(replace(item, **changes) if changes else item)  # type: ignore[type-var]
    return tuple(bounded)


def _usable_text(name: str, value: str) -> str | None:
    """None if the text is a UUID that cannot be stored."""
    is_uuid = name in UUIDS
    longest = LONGEST_UUID if is_uuid else LONGEST.get(name, LONGEST_TEXT)
    if len(value) <= longest and value.isprintable() and (value or not is_uuid):
        return value
    if is_uuid:
        return None
    # A lone surrogate cannot be encoded.
    text = value.replace("\0", "").encode(errors="replace").decode()
    return text[:longest]


@cache
def _fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    """The names of the fields, and whether the value is required."""
    return tuple((field.name, field.required) for field in fields(kind))


ORDER = "CGM"


class ListedProcess(Struct, frozen=True):
    """One line of one list: "C" compute, "G" graphics, "M" MPS. `instance`: its MIG instance."""

    kind: str
    pid: int
    memory_bytes: int | None = None
    instance: int | None = None


def merged_processes(
    gpu_uuid: str, lines: Iterable[ListedProcess], total_bytes: int | None
) -> list[GpuProcess]:
    """Every pid once, by pid. Lines without a valid pid or with impossible memory are dropped."""
    by_pid: dict[int, list[ListedProcess]] = {}
    for line in lines:
        if line.pid > 0:
            by_pid.setdefault(line.pid, []).append(line)
    return [
        GpuProcess(
            gpu_uuid=gpu_uuid,
            pid=pid,
            memory_bytes=_memory(same, total_bytes),
            kinds="".join(kind for kind in ORDER if any(line.kind == kind for line in same)),
            instance=_instance(same),
        )
        for pid, same in sorted(by_pid.items())
    ]


def with_instances(
    lines: Iterable[ListedProcess], inside: Iterable[ListedProcess]
) -> list[ListedProcess]:
    """Lines of the GPU and its MIG instances; the lines of the instances take precedence."""
    placed = list(inside)
    pids = {line.pid for line in placed}
    return [*placed, *(line for line in lines if line.pid not in pids)]


def _instance(lines: Iterable[ListedProcess]) -> int | None:
    """The MIG instance that a process is in, if it is in one."""
    instances = {line.instance for line in lines}
    return instances.pop() if len(instances) == 1 else None


def _memory(lines: Iterable[ListedProcess], total_bytes: int | None) -> int | None:
    """Lists repeat the same memory; MIG instances each hold their own."""
    bytes_by_instance: dict[int | None, int] = {}
    for line in lines:
        if line.memory_bytes is not None and _possible(line.memory_bytes, total_bytes):
            bytes_by_instance[line.instance] = max(
                bytes_by_instance.get(line.instance, 0), line.memory_bytes
            )
    return sum(bytes_by_instance.values()) if bytes_by_instance else None


def _possible(size: int, total_bytes: int | None) -> bool:
    return size >= 0 and (total_bytes is None or size <= total_bytes)


# Calls of the driver that did not come back: pauses, and GPUs that are left out.


# A first hang of the driver as a whole may be transient; repeated hangs most likely are not.
FIRST_PAUSE, NEXT_PAUSE = timedelta(seconds=5), timedelta(seconds=60)
REMEMBERED = timedelta(minutes=15)
PROBLEM = "The NVIDIA driver hangs: a call did not come back."
REMEDY = (
    "gpucoord asks it again after 5 s, then each minute. Look for NVRM lines in `dmesg`; often only"
    " a restart of the machine helps."
)
# A GPU that hangs again and again is tried ever less often.
FIRST_ABSENCE, LONGEST_ABSENCE = timedelta(minutes=1), timedelta(hours=1)
HANGS_KEPT, MOST_HANGS = timedelta(hours=6), 200


class Hang(Struct, frozen=True):
    """A call that did not come back. gpu: what it was about, "" = the driver as a whole."""

    at: datetime
    gpu: str
    call: str


def hang_text(call: str, gpu: str, loop: str, waited_s: float) -> str:
    about = f" of {gpu}" if gpu else ""
    return (
        f"The NVIDIA driver hangs: {call}{about} did not come back within {waited_s:.0f} s."
        f" The {loop} goes on in a fresh process."
    )


def hung_call(text: str) -> str:
    """The call that `hang_text` names."""
    return text.partition(": ")[2].partition(" ")[0] or "a call"


def resumes_at(hangs: Sequence[datetime]) -> datetime | None:
    """When GPUs may be read again; `hangs` are newest first. None: at any time."""
    if not hangs:
        return None
    again = len(hangs) > 1 and hangs[0] - hangs[1] < REMEMBERED
    return hangs[0] + (NEXT_PAUSE if again else FIRST_PAUSE)


def paused() -> GpuSweep:
    """The sweep to show during a pause."""
    return GpuSweep(problem=PROBLEM, remedy=REMEDY)


def left_out(hangs: Sequence[Hang], answered: Mapping[str, datetime]) -> dict[str, str]:
    """The GPUs that are not called, with the call that hung; `hangs` are newest first.

    answered: when a trial last showed that the calls of a GPU come back.
    """
    return {gpu: same[0].call for gpu, same in _open(hangs, answered).items()}


def to_try(hangs: Sequence[Hang], answered: Mapping[str, datetime], now: datetime) -> str | None:
    """A GPU that is left out and is due for a trial.

    That is after the n-th hang of a GPU 2^(n-1) times FIRST_ABSENCE later.
    """
    of_gpus = _open(hangs, answered).items()
    due = {gpu: same[0].at for gpu, same in of_gpus if now - same[0].at >= _absence(len(same))}
    return min(due, key=due.__getitem__, default=None)


def _open(hangs: Sequence[Hang], answered: Mapping[str, datetime]) -> dict[str, list[Hang]]:
    by_gpu: dict[str, list[Hang]] = {}
    for hang in hangs:
        if hang.gpu:
            by_gpu.setdefault(hang.gpu, []).append(hang)
    return {
        gpu: same
        for gpu, same in by_gpu.items()
        if gpu not in answered or answered[gpu] < same[0].at
    }


def _absence(hangs: int) -> timedelta:
    # Bounded before the power, since a timedelta cannot hold 2^200 minutes.
    times: int = 2 ** min(hangs - 1, 10)
    return min(LONGEST_ABSENCE, FIRST_ABSENCE * times)
