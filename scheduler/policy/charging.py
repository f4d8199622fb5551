"""Policy: what each person takes of the GPUs at an instant, by all their processes.

a job of ours    the whole GPU if it is exclusive or did not say how much memory it needs; else the
                 greatest of the memory that it declared, that it holds, and its time on the GPU
other processes  the greater of memory and time, as parts of the GPU; one known is enough

A process of which neither is known charges nobody, and lessens the coverage. Nobody takes more of a
GPU than the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from monitor.policy.limits import hidden
from monitor.readings import ClaimFact, GpuReading, Health, ProcessReading, Snapshot
from scheduler.people import Capacity


@dataclass(slots=True)
class Charge:
    """In GPUs. `outside`: the part of it that no job of ours takes.

    seen, known: on how many GPUs they have processes, and of how many of these the charge is known.
    """

    gpus: float = 0.0
    outside: float = 0.0
    seen: int = 0
    known: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """A job's claim on a GPU, as a part of it, and from when to when (None = it goes on)."""

    owner: str
    job_ref: str
    part: float
    from_at: datetime
    until_at: datetime | None = None

    def seconds(self, since: datetime, until: datetime) -> float:
        """GPU-seconds in that time."""
        end = until if self.until_at is None else min(until, self.until_at)
        return self.part * max(0.0, (end - max(since, self.from_at)).total_seconds())


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


def held_seconds(holds: Iterable[Hold], since: datetime, until: datetime) -> dict[str, float]:
    """GPU-seconds by owner that jobs kept in that time."""
    found: dict[str, float] = {}
    for hold in holds:
        if seconds := hold.seconds(since, until):
            found[hold.owner] = found.get(hold.owner, 0.0) + seconds
    return found


def _gpu(
    gpu: GpuReading,
    claims: Sequence[ClaimFact],
    processes: Sequence[ProcessReading],
    found: dict[str, Charge],
) -> None:
    jobs: dict[str, float] = {}
    outside: dict[str, float] = {}
    refs = {claim.job_ref: claim for claim in claims}
    for ref, claim in refs.items():
        mine = [p for p in processes if p.job_ref == ref]
        jobs[claim.owner] = jobs.get(claim.owner, 0.0) + _of_job(gpu, claim, mine)
        _seen(found, claim.owner, known=True)
    for process in processes:
        owner = process.job_owner or process.user
        if process.job_ref in refs or not owner:
            continue
        taken = _of(gpu, process)
        outside[owner] = outside.get(owner, 0.0) + (taken or 0.0)
        _seen(found, owner, known=taken is not None)
    for owner in jobs.keys() | outside.keys():
        kept, other = min(1.0, jobs.get(owner, 0.0)), outside.get(owner, 0.0)
        other = min(other, 1.0 - kept)
        found[owner].gpus += kept + other
        found[owner].outside += other


def _of_job(gpu: GpuReading, claim: ClaimFact, mine: Iterable[ProcessReading]) -> float:
    declared = part(claim.memory_bytes, claim.exclusive, gpu.memory_total_bytes)
    return min(1.0, max(declared, sum(_of(gpu, process) or 0.0 for process in mine)))


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
