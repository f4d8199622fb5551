"""Memory that outlives its process: release by ended jobs, and memory that no listed process holds.

An ended job has released its memory when its processes are gone; totals are not used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from monitor.facts.claims import ClaimFact
from monitor.facts.gpu_states import ClosureFact, ClosureKind
from monitor.facts.readings import GpuReading, Health, ProcessReading

# Claims on a GPU that has disappeared are closed after this time.
FORGET = timedelta(hours=1)
# A GPU that still holds memory of an ended job after this time is quarantined.
RELEASE_WAIT = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """The result of one sweep.

    Claims whose processes appeared, claims whose memory is free, GPUs to quarantine, and GPUs whose
    quarantine is over.
    """

    started: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    stuck: tuple[ClosureFact, ...] = ()
    recovered: tuple[str, ...] = ()


def keep_jobs(
    processes: Sequence[ProcessReading],
    before: Iterable[ProcessReading],
    claims: Iterable[ClaimFact],
) -> tuple[ProcessReading, ...]:
    """The processes; those of ended jobs keep their job, also when they are dead.

    The driver may list a dead pid as long as its memory is held; /proc has no entry for it then.
    """
    ended = {(c.gpu_uuid, c.job_ref) for c in claims if c.until is not None}
    if not ended:
        return tuple(processes)
    were = {(p.gpu_uuid, p.pid): p for p in before if (p.gpu_uuid, p.job_ref) in ended}
    return tuple(_kept(process, were.get((process.gpu_uuid, process.pid))) for process in processes)


def judge(
    processes: Iterable[ProcessReading],
    gpus: Sequence[GpuReading],
    claims: Sequence[ClaimFact],
    closures: Sequence[ClosureFact],
    now: datetime,
) -> Cooling:
    """Judge a sweep with a fresh process list. A lost GPU changes nothing."""
    on: dict[tuple[str, str], list[ProcessReading]] = {}
    for process in processes:
        if process.job_ref is not None:
            on.setdefault((process.gpu_uuid, process.job_ref), []).append(process)
    uuids = {gpu.uuid for gpu in gpus}
    well = {gpu.uuid for gpu in gpus if gpu.health is Health.OK}
    ended = [c for c in claims if c.until is not None]
    over = [c for c in ended if _is_over(c, on, uuids, well, now)]
    held = [c for c in ended if (c.gpu_uuid, c.job_ref) in on and c.gpu_uuid in well]
    late = [c for c in held if c.until is not None and now - c.until > RELEASE_WAIT]
    closed = {c.gpu_uuid for c in closures if c.kind is ClosureKind.QUARANTINED}
    return Cooling(
        started=_rows(c for c in claims if c.seen is None and (c.gpu_uuid, c.job_ref) in on),
        freed=_rows(over),
        stuck=tuple(_quarantine(late, on, closed, now).values()),
        recovered=tuple(sorted((closed & well) - {c.gpu_uuid for c in held})),
    )


def _is_over(
    claim: ClaimFact,
    on: Mapping[tuple[str, str], list[ProcessReading]],
    uuids: Collection[str],
    well: Collection[str],
    now: datetime,
) -> bool:
    if claim.gpu_uuid in well:
        return (claim.gpu_uuid, claim.job_ref) not in on
    return claim.gpu_uuid not in uuids and claim.until is not None and now - claim.until > FORGET


def _kept(process: ProcessReading, was: ProcessReading | None) -> ProcessReading:
    """Keep the owner and job of a pid unless another process has the pid now."""
    if was is None or process.job_ref is not None:
        return process
    ticks = (process.start_ticks, was.start_ticks)
    if None not in ticks and ticks[0] != ticks[1]:
        return process
    return replace(
        was,
        memory_bytes=process.memory_bytes,
        sm_pct=process.sm_pct,
        kinds=process.kinds,
        source=process.source,
        instance=process.instance,
    )


def _quarantine(
    late: Iterable[ClaimFact],
    on: Mapping[tuple[str, str], list[ProcessReading]],
    closed: Collection[str],
    now: datetime,
) -> dict[str, ClosureFact]:
    """One closure for each GPU that is not in quarantine yet, for the job that ended first."""
    closures_by_gpu: dict[str, ClosureFact] = {}
    for claim in late:
        if claim.gpu_uuid in closed or claim.gpu_uuid in closures_by_gpu:
            continue
        left = on[claim.gpu_uuid, claim.job_ref]
        sizes = [p.memory_bytes for p in left if p.memory_bytes is not None]
        closures_by_gpu[claim.gpu_uuid] = ClosureFact(
            gpu_uuid=claim.gpu_uuid,
            kind=ClosureKind.QUARANTINED,
            since=now,
            job_ref=claim.job_ref,
            pid=max(left, key=lambda p: p.memory_bytes or 0).pid,
            memory_bytes=sum(sizes) if sizes else None,
        )
    return closures_by_gpu


def _rows(claims: Iterable[ClaimFact]) -> tuple[int, ...]:
    return tuple(claim.row for claim in claims if claim.row is not None)


# Contexts of the driver itself take less than this.
LEAST_BYTES = 1024**3
LASTING = timedelta(seconds=60)


def with_orphans(
    gpus: Sequence[GpuReading],
    processes: Iterable[ProcessReading],
    before: Mapping[str, GpuReading],
    now: datetime,
    is_fresh: bool,
) -> tuple[GpuReading, ...]:
    """The readings with orphaned memory and its begin; unchanged between process lists."""
    held: dict[str, list[int | None]] = defaultdict(list)
    for process in processes:
        held[process.gpu_uuid].append(process.memory_bytes)
    readings: list[GpuReading] = []
    for gpu in gpus:
        old = before.get(gpu.uuid)
        if not is_fresh and old is not None:
            size, since = old.orphaned_bytes, old.orphaned_since
        else:
            size = orphaned(gpu, held[gpu.uuid])
            since = old.orphaned_since if old else None
            since = (since or now) if size else None
        readings.append(replace(gpu, orphaned_bytes=size, orphaned_since=since))
    return tuple(readings)


def orphaned(gpu: GpuReading, held: Sequence[int | None]) -> int | None:
    """Used memory minus the sum of the processes, if it is much. None: unknown.

    Used bytes exclude reserved ones. If the driver does not separate these, or hides the memory of
    a process, the result is unknown.
    """
    if gpu.health is not Health.OK or gpu.memory_used_bytes is None:
        return None
    if gpu.memory_reserved_bytes is None or None in held:
        return None
    rest = gpu.memory_used_bytes - sum(size for size in held if size is not None)
    return rest if rest >= LEAST_BYTES else 0


def became_lasting(gpu: GpuReading, old_at: datetime, now: datetime) -> bool:
    """Whether memory has been orphaned for long enough now, but had not been at `old_at`."""
    since = gpu.orphaned_since
    return since is not None and now - since >= LASTING > old_at - since
