"""When the memory of a job that has ended is back, measured by its processes and not by totals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from monitor.claims import ClaimFact
from monitor.gpu_closures import ClosureFact, ClosureKind
from monitor.readings import GpuReading, Health, ProcessReading

# Claims on a GPU that is gone are not waited for longer than this.
FORGET = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoolingPolicy:
    """How long a job that has ended may take to give its GPU memory back."""

    wait_s: float = field(
        default=5.0,
        metadata={
            "label": "Wait for memory",
            "help": "After a job's end; then its GPU alone goes into quarantine.",
            "unit": "s",
            "least": 1,
            "most": 600,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """What one sweep says of the claims: rows whose processes came, rows whose memory is back,

    GPUs to put into quarantine, and GPUs whose quarantine is over.
    """

    seen: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    stuck: tuple[ClosureFact, ...] = ()
    recovered: tuple[str, ...] = ()


def keep_jobs(
    processes: Sequence[ProcessReading],
    before: Iterable[ProcessReading],
    claims: Iterable[ClaimFact],
) -> tuple[ProcessReading, ...]:
    """The processes; those of jobs that have ended stay known as theirs, even once they are dead.

    The driver may list a dead pid as long as its memory is held; /proc knows nothing of it then.
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
    policy: CoolingPolicy,
    now: datetime,
) -> Cooling:
    """Judge a sweep in which processes were looked at anew. A GPU that is lost tells nothing."""
    on: dict[tuple[str, str], list[ProcessReading]] = {}
    for process in processes:
        if process.job_ref is not None:
            on.setdefault((process.gpu_uuid, process.job_ref), []).append(process)
    known = {gpu.uuid for gpu in gpus}
    well = {gpu.uuid for gpu in gpus if gpu.health is Health.OK}
    wait = timedelta(seconds=policy.wait_s)
    ended = [c for c in claims if c.until is not None]
    over = [c for c in ended if _is_over(c, on, known, well, now)]
    held = [c for c in ended if (c.gpu_uuid, c.job_ref) in on and c.gpu_uuid in well]
    late = [c for c in held if c.until is not None and now - c.until > wait]
    closed = {c.gpu_uuid for c in closures if c.kind is ClosureKind.QUARANTINED}
    return Cooling(
        seen=_rows(c for c in claims if c.seen is None and (c.gpu_uuid, c.job_ref) in on),
        freed=_rows(over),
        stuck=tuple(_quarantine(late, on, closed, now).values()),
        recovered=tuple(sorted((closed & well) - {c.gpu_uuid for c in held})),
    )


def _is_over(
    claim: ClaimFact,
    on: Mapping[tuple[str, str], list[ProcessReading]],
    known: Collection[str],
    well: Collection[str],
    now: datetime,
) -> bool:
    if claim.gpu_uuid in well:
        return (claim.gpu_uuid, claim.job_ref) not in on
    return claim.gpu_uuid not in known and claim.until is not None and now - claim.until > FORGET


def _kept(process: ProcessReading, was: ProcessReading | None) -> ProcessReading:
    """Whose it was stays known, unless another process has the pid by now."""
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
    found: dict[str, ClosureFact] = {}
    for claim in late:
        if claim.gpu_uuid in closed or claim.gpu_uuid in found:
            continue
        left = on[claim.gpu_uuid, claim.job_ref]
        sizes = [p.memory_bytes for p in left if p.memory_bytes is not None]
        found[claim.gpu_uuid] = ClosureFact(
            gpu_uuid=claim.gpu_uuid,
            kind=ClosureKind.QUARANTINED,
            since=now,
            job_ref=claim.job_ref,
            pid=max(left, key=lambda p: p.memory_bytes or 0).pid,
            memory_bytes=sum(sizes) if sizes else None,
        )
    return found


def _rows(claims: Iterable[ClaimFact]) -> tuple[int, ...]:
    return tuple(claim.row for claim in claims if claim.row is not None)
