"""Rows -> blockers: why nothing may start on a GPU now, though the GPU itself is well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from monitor import gpu_closing
from monitor.gpu_closures import ClosureFact, ClosureKind
from monitor.readings import ComputeMode, ProcessReading, Snapshot
from scheduler import locked
from scheduler.blockers import Blocker, Tier
from scheduler.policy import giving_way
from scheduler.policy.capacity import lets_one_in
from scheduler.units import size

Closed = Mapping[str, tuple[Blocker, ...]]
Source = Callable[[str, Snapshot, datetime], Closed]


def of(host: str, snapshot: Snapshot, now: datetime) -> dict[str, tuple[Blocker, ...]]:
    """All reasons, by the GPU's UUID; GPUs that are open are not in it."""
    found: dict[str, tuple[Blocker, ...]] = {}
    for source in SOURCES:
        for uuid, blockers in source(host, snapshot, now).items():
            found[uuid] = (*found.get(uuid, ()), *blockers)
    return found


def closed_by_rows(host: str, snapshot: Snapshot, _now: datetime) -> Closed:
    """GPUs that an operator paused, and those in quarantine."""
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    found: dict[str, tuple[Blocker, ...]] = {}
    for fact in gpu_closing.on(host):
        if fact.gpu_uuid in indices:
            blocker = _blocker(fact, f"GPU {indices[fact.gpu_uuid]}")
            found[fact.gpu_uuid] = (*found.get(fact.gpu_uuid, ()), blocker)
    return found


def _blocker(fact: ClosureFact, gpu: str) -> Blocker:
    if fact.kind is ClosureKind.PAUSED:
        why = f": {fact.reason}" if fact.reason else "."
        text = f"{gpu} is paused by {fact.by}{why}"
        return Blocker(
            code="GpuPaused", text=text, tier=Tier.MACHINE, available=gpu, holder=fact.by
        )
    held = "memory" if fact.memory_bytes is None else size(fact.memory_bytes)
    text = f"{gpu} is in quarantine: job {fact.job_ref} has ended, but its {held} are not back."
    return Blocker(
        code="GpuQuarantined",
        text=text,
        tier=Tier.MACHINE,
        available=gpu,
        holder=f"job {fact.job_ref}, pid {fact.pid}",
    )


def closed_by_mode(_host: str, snapshot: Snapshot, _now: datetime) -> Closed:
    """GPUs on which their administrator lets nobody compute, or one process that is not ours."""
    found: dict[str, tuple[Blocker, ...]] = {}
    for gpu in snapshot.gpus:
        if gpu.compute_mode is ComputeMode.PROHIBITED:
            found[gpu.uuid] = (_prohibited(gpu.index),)
        elif lets_one_in(gpu, snapshot):
            others = [p for p in snapshot.on(gpu.uuid) if p.job_ref is None and "C" in p.kinds]
            if others:
                found[gpu.uuid] = (_taken_by_one(gpu.index, others[0]),)
    return found


def _prohibited(index: int) -> Blocker:
    text = (
        f"GPU {index} lets nothing compute: its compute mode is Prohibited"
        f" (nvidia-smi -i {index} -c DEFAULT lets it again)."
    )
    return Blocker(code="ComputeProhibited", text=text, tier=Tier.MACHINE, available=f"GPU {index}")


def _taken_by_one(index: int, process: ProcessReading) -> Blocker:
    who = f"{process.user or 'someone unknown'}/{process.program or f'pid {process.pid}'}"
    text = (
        f"{who} computes on GPU {index}, whose compute mode lets one process in at a time"
        f" (nvidia-smi -i {index} -c DEFAULT lets more in)."
    )
    return Blocker(
        code="ComputeExclusive",
        text=text,
        tier=Tier.MACHINE,
        available=f"GPU {index}",
        holder=who,
    )


def closed_by_owners(_host: str, snapshot: Snapshot, _now: datetime) -> Closed:
    """GPUs that somebody uses for themselves."""
    return giving_way.closed(snapshot)


# In the order in which they are told.
SOURCES: tuple[Source, ...] = (closed_by_owners, closed_by_rows, closed_by_mode, locked.closed)
