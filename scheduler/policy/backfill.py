"""Policy: EASY backfill: the first job that can't start is promised GPUs, the others go around it.

The promise is for the moment at which enough of what runs will have ended at the latest. Until then
a job may start on these GPUs only if it ends before, or leaves enough room beside the promised one.
Where nobody can tell the moment, jobs of known length go ahead, until the promised one has waited
for long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scheduler.blockers import Blocker
from scheduler.jobs import QueuedJob, Requirement
from scheduler.plans import PlanPolicy, RunningJob, Slot
from scheduler.policy.placement import NO_BARS, choose, left, taken
from scheduler.policy.refusing import verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPolicy:
    """How long others may go ahead of a job whose turn it is."""

    patience_minutes: float = field(
        default=60.0,
        metadata={
            "label": "Patience of a large job",
            "help": "Nobody knows when it can start: after this wait its GPUs are left to drain.",
            "unit": "min",
            "least": 0,
            "most": 10080,
        },
    )


@dataclass(frozen=True, slots=True)
class Stay:
    """A job on GPUs and when it has left them at the latest; None = nobody can tell."""

    job_id: int
    ends: datetime | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs that are promised to a job, each as it will be then. at None = nobody can tell when.

    drains: nothing that takes the promised room starts there any more, however short.
    """

    job: QueuedJob
    at: datetime | None
    gpus: Mapping[str, Slot]
    drains: bool


def stays(running: Iterable[RunningJob], now: datetime) -> list[Stay]:
    """Who is late may stay for ever; who has been asked to leave does so soon."""
    return [Stay(job.id, now if job.yields else _end(job, now)) for job in running]


def reserve(
    job: QueuedJob,
    gpus: Sequence[Slot],
    there: Iterable[Stay],
    policy: PlanPolicy,
    rules: BackfillPolicy,
    now: datetime,
    bars: Mapping[str, Blocker] = NO_BARS,
) -> Reservation | None:
    """The earliest moment and its GPUs; None when the job would not fit even if all had left."""
    future = [replace(gpu, ramping=None) for gpu in gpus]
    here = {id_ for gpu in gpus for id_ in gpu.jobs}
    in_order = sorted(
        (stay for stay in there if stay.job_id in here),
        key=lambda stay: (stay.ends is None, stay.ends or now, stay.job_id),
    )
    for stay in [None, *in_order]:
        if stay is not None:
            future = [left(g, {stay.job_id}) if stay.job_id in g.jobs else g for g in future]
        chosen = choose(job.requirement, future, policy, bars, job.id)
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


def bars(
    reservation: Reservation,
    requirement: Requirement,
    lasts: timedelta | None,
    policy: PlanPolicy,
    now: datetime,
) -> Mapping[str, Blocker]:
    """The promised GPUs on which such a job would be in the way, and the words for it."""
    if is_over_before(reservation, lasts, now):
        return NO_BARS
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
    """The promise once another job has been placed: what that still takes then is not there."""
    if is_over_before(reservation, job.lasts, now):
        return reservation
    gpus = {
        uuid: taken(gpu, job.id, job.requirement) if uuid in gpu_uuids else gpu
        for uuid, gpu in reservation.gpus.items()
    }
    return replace(reservation, gpus=gpus)


def is_over_before(reservation: Reservation, lasts: timedelta | None, now: datetime) -> bool:
    """Whether a job of this length has left when the promise is due."""
    if lasts is None or reservation.drains:
        return False
    return reservation.at is None or now + lasts <= reservation.at


def _leaves_room(
    reservation: Reservation, gpu: Slot, requirement: Requirement, policy: PlanPolicy
) -> bool:
    beside = replace(taken(gpu, -1, requirement), ramping=None)
    wanted = reservation.job
    return verdict(wanted.requirement, beside, policy, wanted.id) is None


def _blocker(reservation: Reservation, gpu: Slot, lasts: timedelta | None) -> Blocker:
    name, holder = f"GPU {gpu.index}", f"job {reservation.job.id}"
    if lasts is None:
        why = "nobody can tell how long yours runs; with a time limit it might go ahead"
    elif reservation.drains:
        why = "it has waited for long"
    else:
        why = "yours might still run when it can start"
    return Blocker(
        code="ReservedFor",
        text=f"{name} is reserved for {holder}, which is served first: {why}.",
        available=name,
        holder=holder,
        until=reservation.at,
    )


def _end(job: RunningJob, now: datetime) -> datetime | None:
    ends = job.ends_at
    return None if ends is None or ends <= now else ends
