"""Policy: predicted start times of waiting jobs, from the expected run times of jobs before them.

The plan decides which jobs start now. The others are put, in their order, into timelines, one for
each GPU: a job takes the GPUs that can have it first, and later jobs start no earlier there. This
is done with typical run times (p50) and with long ones (p90); see run_times.py. Backfill makes real
starts earlier, new and longer jobs make them later. tests/bench/bench_predictions.py replays
recorded queues and prints the errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter

from scheduler.facts.blockers import Blocker, BlockerCode
from scheduler.facts.jobs import QueuedJob
from scheduler.facts.plans import Plan, PlanPolicy, Slots
from scheduler.queue.planner.forecast.time_windows import WindowForecast
from scheduler.queue.planner.forecast.timeline import GpuTimelines
from scheduler.queue.planner.gates import PlannerThresholds
from scheduler.queue.planner.order import ServiceOrder, Shares, overdue
from scheduler.queue.planner.plan import plan

# Jobs further back in the queue only get their position.
FORESEEN = 2000
# However well run times are known: new jobs, and the order of users as their shares change, move a
# start by a third of the wait. bench_predictions shows what this brings.
QUEUE_PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """position: 1 is served next, None = it can't be served now. p50, p90: None = unknown.

    never: waiting can't lift what keeps it. gpu_uuids, end: where it would start at p50, and when
    it would end there; (), None = unknown.
    """

    position: int | None
    p50: datetime | None
    p90: datetime | None
    never: bool = False
    gpu_uuids: tuple[str, ...] = field(default=(), compare=False)
    end: datetime | None = field(default=None, compare=False)


NEVER = Estimate(position=None, p50=None, p90=None, never=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The placement or the forecast of a job that is not submitted."""

    starts_now: bool
    blockers: tuple[Blocker, ...]
    estimate: Estimate


def forecast(
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds | None = None,
) -> dict[int, Estimate]:
    """An estimate for each waiting job."""
    jobs, thresholds = list(queue), rules or PlannerThresholds()
    return _estimates(
        jobs, plan(jobs, slots, policy, now, thresholds), slots, policy, now, thresholds
    )


def what_if(
    new: QueuedJob,
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds | None = None,
) -> WhatIf:
    """Forecast of a job that is not submitted; its id must not be in the queue."""
    jobs, thresholds = [*queue, new], rules or PlannerThresholds()
    made = plan(jobs, slots, policy, now, thresholds)
    return WhatIf(
        starts_now=any(placement.job_id == new.id for placement in made.placements),
        blockers=made.blockers.get(new.id, ()),
        estimate=_estimates(jobs, made, slots, policy, now, thresholds, only=new.id)[new.id],
    )


def _estimates(
    jobs: Sequence[QueuedJob],
    made: Plan,
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds,
    only: int | None = None,
) -> dict[int, Estimate]:
    """`only`: the one job whose estimate is wanted; it is complete, others may be missing."""
    placed = {placement.job_id: placement.gpu_uuids for placement in made.placements}
    line = _line([job for job in jobs if job.id not in placed], slots, rules, now)
    ahead = WindowForecast(slots.windows, rules.windows, now)
    p50, p90 = (GpuTimelines(slots, policy, now, ahead, late=late) for late in (False, True))
    for future in (p50, p90):
        for job in jobs:
            if job.id in placed:
                future.take(job, placed[job.id], now)
    estimates = {
        id_: Estimate(position=1, p50=now, p90=now, gpu_uuids=uuids, end=p50.ends.get(id_))
        for id_, uuids in placed.items()
    }
    number = 0
    # Most jobs share their reasons with others.
    distinct = {id(why): why for why in made.blockers.values()}
    final = {key for key, why in distinct.items() if any(blocker.never for blocker in why)}
    if only in estimates:
        return estimates
    for job in line:
        if final and id(made.blockers.get(job.id)) in final:
            estimates[job.id] = NEVER
        else:
            number += 1
            if number <= FORESEEN:
                estimates[job.id] = _served(
                    job, number, made.blockers.get(job.id, ()), p50, p90, now
                )
            elif only in (None, job.id):
                estimates[job.id] = Estimate(position=number, p50=None, p90=None)
        if job.id == only:
            return estimates
    # A job that follows another has the higher number.
    held = sorted((job for job in jobs if job.waits), key=attrgetter("id"))
    for place, job in enumerate(held):
        if only is not None and job.id != only and place >= FORESEEN:
            continue
        why = made.blockers.get(job.id, ()) if place < FORESEEN else ()
        early, late = (_followed(job, why, future) for future in (p50, p90))
        late = max(early, late) if early is not None and late is not None else late
        estimates[job.id] = Estimate(position=None, p50=early or _opens(job.waits), p90=late)
    return estimates


def _served(
    job: QueuedJob,
    position: int,
    why: Sequence[Blocker],
    p50: GpuTimelines,
    p90: GpuTimelines,
    now: datetime,
) -> Estimate:
    early, late = p50.serve(job, why), p90.serve(job, why)
    if early is not None and late is not None:
        late = max(late, early + (early - now) // QUEUE_PARTS)
    return Estimate(
        position=position,
        p50=early,
        p90=late,
        gpu_uuids=p50.places.get(job.id, ()),
        end=p50.ends.get(job.id),
    )


def _followed(job: QueuedJob, why: Sequence[Blocker], future: GpuTimelines) -> datetime | None:
    """When a job may start that depends on others; None = unknown."""
    if not why or not any(blocker.code is BlockerCode.DEPENDENCY for blocker in job.waits):
        return None
    return future.serve(job, [_due(blocker, future.ends) for blocker in why])


def _due(blocker: Blocker, ends: Mapping[int, datetime]) -> Blocker:
    """With the time at which the job that is waited for has ended."""
    if blocker.code is not BlockerCode.DEPENDENCY or blocker.job is None:
        return blocker
    return replace(blocker, until=ends.get(blocker.job))


def _line(
    jobs: Sequence[QueuedJob], slots: Slots, rules: PlannerThresholds, now: datetime
) -> Iterable[QueuedJob]:
    """Jobs in the predicted order of placement."""
    shares = Shares(slots, {job.owner for job in jobs})
    eligible = [job for job in jobs if not job.waits]
    first = overdue(eligible, slots.running, rules.order, now)
    for job in ServiceOrder(eligible, shares, rules.order, now, ahead=first):
        yield job
        shares.count(job.owner, job.requirement)


def _opens(waits: Sequence[Blocker]) -> datetime | None:
    """When all own blockers of the job have ended; None = one has no known end."""
    ends = [blocker.until for blocker in waits]
    known_ends = [end for end in ends if end is not None]
    return max(known_ends) if known_ends and len(known_ends) == len(ends) else None
