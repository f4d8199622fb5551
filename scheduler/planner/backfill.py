"""Policy: EASY backfill: the first job that cannot start gets a reservation of GPUs.

The reservation begins when enough of the running jobs must have ended. Until then a job may start
on these GPUs only if it ends before, or leaves enough room for the reserved job. If the begin is
unknown, jobs of known length may start until the reserved job has waited for `patience_minutes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from monitor.facts.thresholds import threshold
from scheduler.facts.blockers import Blocker, BlockerCode, details
from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.plans import PlanPolicy, RunningJob, Slot
from scheduler.planner.matching import reject_code
from scheduler.planner.placement import NO_EXCLUSIONS, after_placement, choose


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPolicy:
    """Backfill of other jobs ahead of a large job."""

    # fmt: off
    patience_minutes: float = threshold(60.0, "Drain GPUs for a large job after",
        unit="min", ge=0, le=10_080,
        help="Applies if the start time of the job is unknown.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class RunningUntil:
    """A job on GPUs and the latest time at which it leaves them. None = unknown."""

    job_id: int
    ends: datetime | None


@dataclass(frozen=True, slots=True)
class Reservation:
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
    rules: BackfillPolicy,
    now: datetime,
    excluded: Mapping[str, Blocker] = NO_EXCLUSIONS,
) -> Reservation | None:
    """The earliest possible reservation. None: the job would not fit on empty GPUs."""
    future = [replace(gpu, ramping=None) for gpu in gpus]
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
                at is None and waited >= timedelta(minutes=rules.patience_minutes),
            )
    return None


def exclusions(
    reservation: Reservation,
    requirement: Requirement,
    lasts: timedelta | None,
    policy: PlanPolicy,
    now: datetime,
) -> Mapping[str, Blocker]:
    """Reserved GPUs on which such a job would delay the reserved job, with blockers."""
    if is_over_before(reservation, lasts, now):
        return NO_EXCLUSIONS
    return {
        uuid: _blocker(reservation, gpu, lasts)
        for uuid, gpu in reservation.gpus.items()
        if not _leaves_room(reservation, gpu, requirement, policy)
    }


def after(
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


def _leaves_room(
    reservation: Reservation, gpu: Slot, requirement: Requirement, policy: PlanPolicy
) -> bool:
    beside = replace(after_placement(gpu, -1, requirement), ramping=None)
    wanted = reservation.job
    return reject_code(wanted.requirement, beside, policy, wanted.id) is None


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
    ends = job.ends_at
    return None if ends is None or ends <= now else ends
