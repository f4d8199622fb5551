"""Policy: what each person takes of the GPUs at an instant, by all their processes.

a job of ours    the whole GPU if it is exclusive or did not say how much memory it needs; else the
                 greatest of the memory that it declared, that it holds, and its time on the GPU
other processes  the greater of memory and time, as parts of the GPU; one known is enough

A process of which neither is known charges nobody, and lessens the coverage. Nobody takes more of a
GPU than the whole of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monitor.policy.limits import hidden
from monitor.readings import ClaimFact, GpuReading, Health, ProcessReading, Snapshot
from scheduler.people import Capacity


@dataclass(slots=True)
class Charge:
    """In GPUs. outside: the part that no job of ours takes. excess: what jobs take beyond what they
    keep from others.

    seen, known: on how many GPUs they have processes, and of how many of these the charge is known.
    """

    gpus: float = 0.0
    outside: float = 0.0
    excess: float = 0.0
    seen: int = 0
    known: int = 0


def capacity(snapshot: Snapshot) -> Capacity:
    """The GPUs that are ours and answer."""
    left_out = hidden(snapshot.gpus, snapshot.host.limits)
    ours = [g for g in snapshot.gpus if g.uuid not in left_out and g.health is not Health.LOST]
    sizes = [g.memory_total_bytes for g in ours if g.memory_total_bytes]
    return Capacity(
        gpu_uuids=tuple(g.uuid for g in ours),
        gpu_bytes=sum(sizes) // len(sizes) if sizes else None,
    )


def part(memory_bytes: int | None, exclusive: bool, gpu_bytes: int | None) -> float:
    """What a job keeps of a GPU from others."""
    if exclusive or memory_bytes is None or not gpu_bytes:
        return 1.0
    return min(1.0, memory_bytes / gpu_bytes)


def charges(snapshot: Snapshot, claims: Sequence[ClaimFact]) -> dict[str, Charge]:
    """By owner; a process whose owner is unknown charges nobody."""
    found: dict[str, Charge] = {}
    for gpu in snapshot.gpus:
        here = [claim for claim in claims if claim.gpu_uuid == gpu.uuid]
        _gpu(gpu, here, snapshot.on(gpu.uuid), found)
    return found


def _gpu(
    gpu: GpuReading,
    claims: Sequence[ClaimFact],
    processes: Sequence[ProcessReading],
    found: dict[str, Charge],
) -> None:
    refs = {claim.job_ref: claim for claim in claims}
    taken: dict[str, list[float]] = {}
    for ref, claim in refs.items():
        kept = part(claim.memory_bytes, claim.exclusive, gpu.memory_total_bytes)
        used = sum(_of(gpu, process) or 0.0 for process in processes if process.job_ref == ref)
        _add(taken, claim.owner, kept, max(0.0, used - kept), 0.0)
        _seen(found, claim.owner, known=True)
    for process in processes:
        owner = process.job_owner or process.user
        if process.job_ref in refs or not owner:
            continue
        used_by = _of(gpu, process)
        _add(taken, owner, 0.0, 0.0, used_by or 0.0)
        _seen(found, owner, known=used_by is not None)
    _take(taken, found)


def _take(taken: Mapping[str, Sequence[float]], found: Mapping[str, Charge]) -> None:
    """What each took of one GPU: what their jobs keep first, and never more than all of it."""
    for owner, (kept, excess, outside) in taken.items():
        kept = min(1.0, kept)
        excess = min(excess, 1.0 - kept)
        outside = min(outside, 1.0 - kept - excess)
        charge = found[owner]
        charge.gpus += kept + excess + outside
        charge.excess += excess
        charge.outside += outside


def _add(taken: dict[str, list[float]], owner: str, *parts: float) -> None:
    sums = taken.setdefault(owner, [0.0, 0.0, 0.0])
    taken[owner] = [a + b for a, b in zip(sums, parts, strict=True)]


def _of(gpu: GpuReading, process: ProcessReading) -> float | None:
    """The greater of what is known of its memory and its time on the GPU, as parts."""
    parts = []
    if process.memory_bytes is not None and gpu.memory_total_bytes:
        parts.append(process.memory_bytes / gpu.memory_total_bytes)
    if process.sm_pct is not None:
        parts.append(process.sm_pct / 100)
    return min(1.0, max(parts)) if parts else None


def _seen(found: dict[str, Charge], owner: str, *, known: bool) -> None:
    charge = found.setdefault(owner, Charge())
    charge.seen += 1
    charge.known += known
