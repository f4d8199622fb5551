"""Policy: predicted start times of waiting jobs: the planner, run forward.

The plan decides which jobs start now. From there on, `simulation.py` lets expected events happen
and places jobs as the planner would: with typical run times (p50) and with long ones (p90); see
classes.py. New and longer jobs make real starts later. tests/bench/bench_predictions.py replays
recorded queues and prints the errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec import Struct

from scheduler.facts.blockers import Blocker
from scheduler.facts.jobs import QueuedJob
from scheduler.facts.plans import PlanPolicy, Slots
from scheduler.queue.planner.forecast.classes import Queue
from scheduler.queue.planner.forecast.simulation import Simulation
from scheduler.queue.planner.gates import PlannerThresholds
from scheduler.queue.planner.order import ServiceOrder, Shares
from scheduler.queue.planner.plan import Pass, place

# Jobs further back in the queue get their position, and that they start later than these.
FORESEEN = 400
# However well run times are known: new jobs, and the order of users as their shares change, move a
# start by a third of the wait. bench_predictions shows what this brings.
QUEUE_PARTS = 3
NEAR, STEP_S = timedelta(minutes=15), 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """position: 1 is served next, None = it can't be served now. p50, p90: None = unknown.

    after: of a job that is too far back in the queue to be predicted, the last predicted start.
    never: waiting can't lift what keeps it. gpu_uuids, end: where it would start at p50, and when
    it would end there; (), None = unknown.
    """

    position: int | None
    p50: datetime | None
    p90: datetime | None
    after: datetime | None = None
    never: bool = False
    gpu_uuids: tuple[str, ...] = field(default=(), compare=False)
    end: datetime | None = field(default=None, compare=False)


NEVER = Estimate(position=None, p50=None, p90=None, never=True)


class WhatIf(Struct, frozen=True, kw_only=True):
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
    made = place(jobs, slots, policy, now, thresholds)
    return _estimates(jobs, made, slots, policy, now, thresholds)


def what_if(
    new: QueuedJob,
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds | None = None,
    *,
    with_p90: bool = True,
) -> WhatIf:
    """Forecast of a job that is not submitted; its id must not be in the queue.

    with_p90: else p90 is p50, in half of the time.
    """
    jobs, thresholds = [*queue, new], rules or PlannerThresholds()
    made = place(jobs, slots, policy, now, thresholds)
    starts_now = any(placement.job_id == new.id for placement in made.placements)
    return WhatIf(
        starts_now=starts_now,
        blockers=() if starts_now else made.reasons_of(new),
        estimate=_estimates(
            jobs, made, slots, policy, now, thresholds, only=new.id, with_p90=with_p90
        )[new.id],
    )


def start_before(
    new: QueuedJob,
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds,
    until: datetime,
) -> datetime | None:
    """The median of the start of a job that is not submitted; None = not known to be before then.

    It costs less than half of `what_if`, and looks half as far.
    """
    jobs = [*queue, new]
    made = place(jobs, slots, policy, now, rules)
    future = Simulation(Queue(jobs, made), slots, policy, rules, now, made, late=False)
    if new.id not in future.starts:
        future.run(FORESEEN // 2, new.id, until)
    start = future.starts.get(new.id)
    return start and _rounded(start, now)


def _estimates(
    jobs: Sequence[QueuedJob],
    made: Pass,
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds,
    only: int | None = None,
    with_p90: bool = True,
) -> dict[int, Estimate]:
    """`only`: the one job whose estimate is wanted; others are missing."""
    placed = {placement.job_id for placement in made.placements}
    begin = Queue(jobs, made)
    futures = [
        Simulation(begin, slots, policy, rules, now, made, late=late)
        for late in (False, True)[: 1 + with_p90]
    ]
    for future in futures if only not in placed else ():
        future.run(FORESEEN, only)
    p50, p90 = futures[0], futures[-1]
    estimates = {}
    for job, position in _line(jobs, made, now):
        if only in (None, job.id):
            is_final = job.id not in placed and made.is_final(job)
            estimates[job.id] = NEVER if is_final else _estimate(job, position, p50, p90, now)
            if only is not None:
                break
    return estimates


def _estimate(
    job: QueuedJob, position: int | None, p50: Simulation, p90: Simulation, now: datetime
) -> Estimate:
    early, late = p50.starts.get(job.id), p90.starts.get(job.id)
    if early is not None and late is not None and early > now:
        late = max(late, early + (early - now) // QUEUE_PARTS)
    return Estimate(
        position=position,
        p50=early and _rounded(early, now),
        p90=late and _rounded(late, now),
        after=p50.stopped_at if early is None and position is not None else None,
        gpu_uuids=p50.places.get(job.id, ()),
        end=p50.ends.get(job.id),
    )


def _line(
    jobs: Sequence[QueuedJob], made: Pass, now: datetime
) -> Iterable[tuple[QueuedJob, int | None]]:
    """All jobs with their position in the predicted order; None = it can't be served now."""
    placed = {placement.job_id for placement in made.placements}
    state = made.state
    waiting = [job for job in jobs if job.id not in placed and not job.waits]
    shares = Shares(state.slots, {job.owner for job in waiting})
    number = 0
    for job in ServiceOrder(waiting, shares, state.rules.order, now, ahead=made.ahead):
        shares.count(job.owner, job.requirement)
        number += not made.is_final(job)
        yield job, number
    for job in jobs:
        if job.id in placed:
            yield job, 1
        elif job.waits:
            yield job, None


def _rounded(at: datetime, now: datetime) -> datetime:
    """Rounded up, so that predictions do not flicker: to 5 s when near, else to minutes."""
    if at <= now:
        return at
    if at - now > NEAR:
        floor = at.replace(second=0, microsecond=0)
        return floor if floor == at else floor + timedelta(minutes=1)
    over = at.second % STEP_S
    if not over and not at.microsecond:
        return at
    return at.replace(microsecond=0) + timedelta(seconds=STEP_S - over)
