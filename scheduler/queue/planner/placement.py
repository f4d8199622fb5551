"""Policy: the GPUs that a request gets, and the reservation of the first job that cannot start.

Of the GPUs that can take a job (matching.py), a job that declares its memory gets those with the
least free memory (best fit), and other jobs get those with the most. Among GPUs of similar fit, a
job that shares GPUs gets the least busy ones.

EASY backfill: the reservation begins when enough of the running jobs must have ended. Until then a
job may start on these GPUs only if it ends before, or leaves enough room for the reserved job. If
the begin is unknown, jobs of known length may start until the reserved job has waited for
`DRAIN_AFTER`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import CLASSES, PriorityClass, QueuedJob, Requirement
from scheduler.facts.plans import PlanPolicy, RunningJob, Slot
from scheduler.limits.quotas.policy.quotas import count
from scheduler.queue.planner.matching import (
    can_never_match,
    constraints_text,
    free_memory,
    is_heavy,
    is_undeclared,
    reject_code,
    rejections,
)

MOST_LISTED = 3
# Fits that differ by less than this part of a GPU's memory are equal.
ALIKE = 0.25
# Below the first, another job is hardly noticed; above the second, it slows all others down.
QUIET_PCT, BUSY_PCT = 30.0, 70.0
# A job with this time limit or run time of earlier jobs gets the strongest GPU.
LONG_JOB = timedelta(hours=4)
# GPUs are drained for a large job that has waited this long, if its start time is unknown.
DRAIN_AFTER = timedelta(minutes=60)
NO_EXCLUSIONS: Mapping[str, Blocker] = {}


def choose(
    requirement: Requirement,
    gpus: Sequence[Slot],
    policy: PlanPolicy,
    excluded: Mapping[str, Blocker] = NO_EXCLUSIONS,
    job_id: int | None = None,
    strength: int = 0,
) -> tuple[Slot, ...] | None:
    """The GPUs that this request gets. None: too few can take it.

    excluded: excluded GPUs. job_id: GPUs may be reserved for this job.
    strength: 1 = the strongest GPUs first, -1 = the weakest first, 0 = by free memory alone.
    """
    fitting = [
        gpu
        for gpu in gpus
        # These two are asked first because they are quick and true for most GPUs of a full host.
        if not (gpu.exclusive or gpu.undeclared)
        and gpu.gpu_uuid not in excluded
        and reject_code(requirement, gpu, policy, job_id) is None
    ]
    if len(fitting) < requirement.gpus:
        return None
    sign = -1 if requirement.memory_bytes is None else 1
    fitting.sort(key=lambda gpu: (sign * free_memory(gpu), gpu.index, gpu.gpu_uuid))
    if requirement.shares and len(fitting) > requirement.gpus:
        worst = free_memory(fitting[requirement.gpus - 1])
        fitting.sort(key=lambda gpu: (free_memory(gpu) > worst + _alike(gpu), _crowd(gpu)))
    if strength:
        # The sort is stable: GPUs of one rank stay ordered by free memory.
        fitting.sort(key=lambda gpu: -strength * (gpu.power or 0.0))
    return tuple(fitting[: requirement.gpus])


def strength(priority: int, lasts: timedelta | None) -> int:
    """The preference between kinds of GPUs; see `choose`."""
    if CLASSES[priority] is PriorityClass.BACKGROUND:
        return -1
    is_long = lasts is not None and lasts >= LONG_JOB
    return 1 if is_long or CLASSES[priority] is PriorityClass.USER_INITIATED else 0


def _alike(gpu: Slot) -> float:
    return ALIKE * (gpu.total_bytes or 0)


def _crowd(gpu: Slot) -> int:
    """How busy others keep the GPU: 0 = hardly, 1 = somewhat or unknown, 2 = most of the time."""
    if not gpu.jobs and not gpu.foreign:
        return 0
    if gpu.use_pct is None or gpu.use_pct >= QUIET_PCT:
        return 2 if (gpu.use_pct or 0.0) > BUSY_PCT else 1
    return 1 if gpu.unsettled else 0


def after_placement(gpu: Slot, job_id: int, requirement: Requirement) -> Slot:
    """The GPU with the job placed on it."""
    free = gpu.free_bytes
    if free is not None and requirement.memory_bytes is not None:
        free = max(0, free - requirement.memory_bytes)
    return replace(
        gpu,
        free_bytes=free,
        jobs=(*gpu.jobs, job_id),
        exclusive=gpu.exclusive or requirement.exclusive or gpu.lone,
        undeclared=gpu.undeclared or is_undeclared(requirement),
        held_bytes=(*gpu.held_by_job, requirement.memory_bytes or 0),
        ramping=job_id if is_heavy(requirement, gpu) else gpu.ramping,
        unsettled=True,
    )


def explain(
    requirement: Requirement,
    gpus: Sequence[Slot],
    policy: PlanPolicy,
    constraints: Sequence[Mapping[str, Blocker]] = (),
    job_id: int | None = None,
) -> tuple[Blocker, ...]:
    """Why too few of `gpus` can take the request, nearest misses first; () = enough can.

    Of each listed GPU, every constraint that holds now. constraints: those that do not depend on
    its free memory, by UUID.
    """
    matching = [gpu for gpu in gpus if not can_never_match(requirement, gpu)]
    if len(matching) < requirement.gpus and gpus:
        return (_infeasible(requirement, len(matching), len(gpus)),)
    excluded = {uuid: why.code for each in reversed(constraints) for uuid, why in each.items()}
    verdicts = [(gpu, reject_code(requirement, gpu, policy, job_id)) for gpu in matching]
    refused = [
        (gpu, code) for gpu, code in verdicts if code is not None or gpu.gpu_uuid in excluded
    ]
    if len(matching) - len(refused) >= requirement.gpus > 0:
        return ()
    refused.sort(key=lambda each: _distance(each, excluded))
    wants = requirement.memory_bytes or policy.undeclared_bytes
    is_full_everywhere = len(gpus) > 1 and all(0 <= free_memory(gpu) < wants for gpu in gpus)
    reasons: list[Blocker] = []
    # One more line is no longer than the line "1 other GPU".
    shown = MOST_LISTED + 1 if len(refused) == MOST_LISTED + 1 else MOST_LISTED
    for gpu, _ in refused[:shown]:
        blockers = [
            *rejections(requirement, gpu, policy, job_id),
            *(each[gpu.gpu_uuid] for each in constraints if gpu.gpu_uuid in each),
        ]
        if is_full_everywhere:
            blockers = [_of_all_gpus(blocker) for blocker in blockers]
        # A time window closes several GPUs with one blocker.
        reasons += [each for each in blockers if each.gpu is not None or each not in reasons]
    if requirement.gpus > 1 or not reasons:
        reasons.insert(0, _too_few(requirement, len(matching) - len(refused)))
    if rest := [code or excluded[gpu.gpu_uuid] for gpu, code in refused[shown:]]:
        reasons.append(_others(rest))
    if len(matching) < len(gpus) and not requirement.gpu_uuid:
        reasons.append(_unsuitable(requirement, len(matching), len(gpus)))
    return tuple(reasons)


def _of_all_gpus(blocker: Blocker) -> Blocker:
    if blocker.code is not BlockerCode.GPU_MEMORY:
        return blocker
    return dataclasses.replace(blocker, details=(*blocker.details, *details(everywhere=True)))


def is_contended(of_gpus: Sequence[Blocker]) -> bool:
    """Whether the end of a job of the queue may make a GPU free for the request."""
    on_gpus = [blocker for blocker in of_gpus if blocker.gpu is not None]
    closed = {blocker.gpu for blocker in on_gpus if _is_outside(blocker)}
    is_complete = all(blocker.code is not BlockerCode.OTHER_GPUS for blocker in of_gpus)
    return not (on_gpus and is_complete and closed == {blocker.gpu for blocker in on_gpus})


def _is_outside(blocker: Blocker) -> bool:
    """Whether no job of the queue holds what the blocker is about."""
    if blocker.tier is not Tier.CONTENTION:
        return not blocker.code.is_load
    return blocker.holder is not None and not blocker.jobs


def _others(codes: Sequence[BlockerCode]) -> Blocker:
    """Counts of the GPUs that are not listed one by one, by reason."""
    counts: Counter[str] = Counter()
    for code, number in Counter(codes).items():
        counts[code.summary or code.value] += number
    in_order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    why = ", ".join(f"{number} {word}" for word, number in in_order)
    return Blocker(code=BlockerCode.OTHER_GPUS, available=why, details=details(count=len(codes)))


def _unsuitable(requirement: Requirement, matching: int, all_: int) -> Blocker:
    return Blocker(
        code=BlockerCode.GPU_UNSUITABLE,
        requested=constraints_text(requirement),
        available=f"{matching} of {all_}",
    )


def _infeasible(requirement: Requirement, matching: int, all_: int) -> Blocker:
    requested = count(requirement.gpus, "GPU")
    return Blocker(
        code=BlockerCode.INFEASIBLE,
        tier=Tier.PERSON,
        requested=f"{requested} {constraints_text(requirement)}".strip(),
        available=f"{matching} of {all_}",
        never=True,
        details=details(able=matching, all=all_),
    )


def _too_few(requirement: Requirement, fitting: int) -> Blocker:
    return Blocker(
        code=BlockerCode.GPU_COUNT,
        requested=count(requirement.gpus, "GPU"),
        available=str(fitting),
        details=details(fitting=fitting),
    )


def _distance(
    refused: tuple[Slot, BlockerCode | None], excluded: Mapping[str, BlockerCode]
) -> tuple[bool, bool, bool, int, int]:
    """Sort key: too little memory is nearer than a taken GPU, then comes load by processes
    outside the queue, whose end nothing tells, then a faulty GPU."""
    gpu, code = refused
    load = excluded.get(gpu.gpu_uuid)
    is_loaded = load is not None and load.is_load and bool(gpu.foreign)
    is_taken = code is BlockerCode.GPU_TAKEN
    return (not gpu.healthy, is_loaded, is_taken, -_free_eighths(gpu), gpu.index)


def _free_eighths(gpu: Slot) -> int:
    """Free memory in eighths, so that the order does not change with each reading."""
    return -1 if gpu.free_bytes is None else 8 * gpu.free_bytes // (gpu.total_bytes or 1)


class RunningUntil(Struct, frozen=True):
    """A job on GPUs and the latest time at which it leaves them. None = unknown."""

    job_id: int
    ends: datetime | None


class Reservation(Struct, frozen=True):
    """GPUs reserved for a job, as they will be at `at`. None = the time is unknown.

    drains: no job starts in the reserved room any more, however short.
    """

    job: QueuedJob
    at: datetime | None
    gpus: Mapping[str, Slot]
    drains: bool


def running_until(running: Iterable[RunningJob], now: datetime) -> list[RunningUntil]:
    """Overdue jobs have an unknown end; jobs that were asked to yield end now."""
    return [RunningUntil(job.id, now if job.yields else _end(job, now)) for job in running]


def reserve(
    job: QueuedJob,
    gpus: Sequence[Slot],
    running: Iterable[RunningUntil],
    policy: PlanPolicy,
    now: datetime,
    excluded: Mapping[str, Blocker] = NO_EXCLUSIONS,
) -> Reservation | None:
    """The earliest possible reservation. None: the job would not fit on empty GPUs."""
    future = [replace(gpu, ramping=None) if gpu.ramping else gpu for gpu in gpus]
    job_ids = {id_ for gpu in gpus for id_ in gpu.jobs}
    in_order = sorted(
        (stay for stay in running if stay.job_id in job_ids),
        key=lambda stay: (stay.ends is None, stay.ends or now, stay.job_id),
    )
    for stay in [None, *in_order]:
        if stay is not None:
            future = [g.without({stay.job_id}) if stay.job_id in g.jobs else g for g in future]
        chosen = choose(job.requirement, future, policy, excluded, job.id)
        if chosen is not None:
            at = now if stay is None else stay.ends
            waited = now - job.submitted_at
            return Reservation(
                job,
                at,
                {gpu.gpu_uuid: gpu for gpu in chosen},
                at is None and waited >= DRAIN_AFTER,
            )
    return None


def reservation_exclusions(
    reservation: Reservation,
    requirement: Requirement,
    lasts: timedelta | None,
    now: datetime,
) -> Mapping[str, Blocker]:
    """Reserved GPUs on which such a job would delay the reserved job, with blockers."""
    if is_over_before(reservation, lasts, now):
        return NO_EXCLUSIONS
    return {
        uuid: _blocker(reservation, gpu, lasts)
        for uuid, gpu in reservation.gpus.items()
        if not _leaves_room(reservation, gpu, requirement)
    }


def reservation_after(
    reservation: Reservation,
    job: QueuedJob,
    gpu_uuids: Sequence[str],
    now: datetime,
) -> Reservation:
    """The reservation after another job was placed."""
    if is_over_before(reservation, job.lasts, now):
        return reservation
    gpus = {
        uuid: after_placement(gpu, job.id, job.requirement) if uuid in gpu_uuids else gpu
        for uuid, gpu in reservation.gpus.items()
    }
    return replace(reservation, gpus=gpus)


def is_over_before(reservation: Reservation, lasts: timedelta | None, now: datetime) -> bool:
    """Whether a job of this length ends before the reservation begins."""
    if lasts is None or reservation.drains:
        return False
    return reservation.at is None or now + lasts <= reservation.at


def _leaves_room(reservation: Reservation, gpu: Slot, requirement: Requirement) -> bool:
    """Whether the reserved job, which fits on the GPU, also fits beside such a job."""
    wanted, part = reservation.job.requirement.memory_bytes, requirement.memory_bytes
    if not (reservation.job.requirement.shares and requirement.shares) or gpu.lone:
        return False
    return gpu.free_bytes is not None and gpu.free_bytes - (part or 0) >= (wanted or 0)


def _blocker(reservation: Reservation, gpu: Slot, lasts: timedelta | None) -> Blocker:
    case = "late"
    if lasts is None:
        case = "unknown"
    elif reservation.drains:
        case = "drains"
    return Blocker(
        code=BlockerCode.RESERVED_FOR,
        gpu=gpu.index,
        jobs=(reservation.job.id,),
        until=reservation.at,
        details=details(case=case),
    )


def _end(job: RunningJob, now: datetime) -> datetime | None:
    ends = job.ends_at if job.ends is None else job.ends.p90
    return None if ends is None or ends <= now else ends
