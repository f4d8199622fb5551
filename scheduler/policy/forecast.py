"""Policy: when waiting jobs may start, from how long those before them are expected to take.

The plan decides what starts now. What is left is put, in its order, into lanes, one for each GPU:
a job takes the GPUs that can have it first, and none that comes after it starts earlier there. Once
with typical lengths (p50), once with the longest (p90). It is an estimate: backfill makes it
better, new and longer jobs make it worse. A job whose predecessors may last for ever has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter

from scheduler.blockers import Blocker
from scheduler.jobs import QueuedJob
from scheduler.plans import Plan, PlanPolicy, RunningJob, Slots
from scheduler.policy.ahead import Ahead
from scheduler.policy.future import Future
from scheduler.policy.ordering import Line, Shares, overdue
from scheduler.policy.planning import plan
from scheduler.policy.rules import Rules

# Who is further back in the queue can only be told the position.
FORESEEN = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """position: 1 is served next, None = it can't be served now. p50, p90: None = unknown."""

    position: int | None
    p50: datetime | None
    p90: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What would become of a job, had it been submitted now."""

    starts_now: bool
    blockers: tuple[Blocker, ...]
    estimate: Estimate


def typical(job: QueuedJob | RunningJob) -> timedelta | None:
    """What it takes as likely as not."""
    return job.typical or job.lasts


def longest(job: QueuedJob | RunningJob) -> timedelta | None:
    """What it takes at most, nine times of ten."""
    return job.lasts


def forecast(
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: Rules | None = None,
) -> dict[int, Estimate]:
    """An estimate for each waiting job."""
    jobs, known = list(queue), rules or Rules()
    return _estimates(jobs, plan(jobs, slots, policy, now, known), slots, policy, now, known)


def what_if(
    new: QueuedJob,
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: Rules | None = None,
) -> WhatIf:
    """The same for a job that nobody has submitted; its id must not be in the queue."""
    jobs, known = [*queue, new], rules or Rules()
    made = plan(jobs, slots, policy, now, known)
    return WhatIf(
        starts_now=any(placement.job_id == new.id for placement in made.placements),
        blockers=made.blockers.get(new.id, ()),
        estimate=_estimates(jobs, made, slots, policy, now, known)[new.id],
    )


def _estimates(
    jobs: Sequence[QueuedJob],
    made: Plan,
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: Rules,
) -> dict[int, Estimate]:
    placed = {placement.job_id: placement.gpu_uuids for placement in made.placements}
    found = {id_: Estimate(position=1, p50=now, p90=now) for id_ in placed}
    line = _line([job for job in jobs if job.id not in placed], slots, rules, now)
    ahead = Ahead(slots.windows, rules.windows, now)
    p50 = Future(slots, policy, now, typical, ahead)
    p90 = Future(slots, policy, now, longest, ahead)
    for future in (p50, p90):
        for job in jobs:
            if job.id in placed:
                future.take(job, placed[job.id], now)
    for number, job in enumerate(line, start=1):
        if number > FORESEEN:
            found[job.id] = Estimate(position=number, p50=None, p90=None)
            continue
        why = made.blockers.get(job.id, ())
        early, late = p50.serve(job, why), p90.serve(job, why)
        if early is not None and late is not None:
            late = max(early, late)
        found[job.id] = Estimate(position=number, p50=early, p90=late)
    # A job that follows another has the higher number.
    for job in sorted((job for job in jobs if job.id not in found), key=attrgetter("id")):
        why = made.blockers.get(job.id, ())
        early, late = (_followed(job, why, future) for future in (p50, p90))
        late = max(early, late) if early is not None and late is not None else late
        found[job.id] = Estimate(position=None, p50=early or _opens(job.waits), p90=late)
    return found


def _followed(job: QueuedJob, why: Sequence[Blocker], future: Future) -> datetime | None:
    """When one may start that waits for others, whose ends may be known; None = nobody knows."""
    if not any(blocker.code == "Dependency" for blocker in job.waits):
        return None
    return future.serve(job, [_due(blocker, future.ends) for blocker in why])


def _due(blocker: Blocker, ends: Mapping[int, datetime]) -> Blocker:
    """With the time at which the job that is waited for has ended."""
    number = (blocker.holder or "").removeprefix("job ")
    if blocker.code != "Dependency" or not number.isdecimal():
        return blocker
    return replace(blocker, until=ends.get(int(number)))


def _line(
    jobs: Sequence[QueuedJob], slots: Slots, rules: Rules, now: datetime
) -> Iterable[QueuedJob]:
    """In the order in which they will be served, as far as it can be told."""
    shares = Shares(slots, {job.owner for job in jobs})
    eligible = [job for job in jobs if not job.waits]
    first = overdue(eligible, slots.running, rules.order, now)
    for job in Line(eligible, shares, rules.order, now, ahead=first):
        yield job
        shares.count(job.owner, job.requirement)


def _opens(waits: Sequence[Blocker]) -> datetime | None:
    """When all that keeps this very job is over, where each says when."""
    ends = [blocker.until for blocker in waits]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None
