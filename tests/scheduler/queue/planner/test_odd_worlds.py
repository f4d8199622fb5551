"""A plan and a forecast come out of any figures of users, limits and clocks."""

from __future__ import annotations

import dataclasses
from datetime import time, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.facts.blockers import Blocker, BlockerCode
from scheduler.facts.jobs import QueuedJob, RunTime
from scheduler.facts.people import Budget, Capacity, Quota, UserAccount, Window
from scheduler.facts.plans import PlanPolicy, Slots
from scheduler.queue.planner.forecasts import forecast, what_if
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, gpu_uuid
from tests.scheduler.queue.planner.test_planning_whole import PEOPLE, machines, queues

# Figures that differences, roundings and settings leave behind.
PARTS = st.sampled_from([0.0, 5e-324, 1e-18, 1e-9, 0.1, 1 / 3, 1.0])
MOMENTS = st.sampled_from([-400.0, -1.0, 0.0, 1e-6, 1.0, 500.0]).map(
    lambda hours: NOW + timedelta(hours=hours)
)
LENGTHS = st.sampled_from([0.0, 1e-6, 1.0, 3600.0, 1e8]).map(lambda s: timedelta(seconds=s))

windows = st.builds(
    Window,
    id=st.integers(1, 3),
    holder=st.sampled_from(PEOPLE),
    members=st.sampled_from(PEOPLE).map(lambda name: frozenset({name})),
    days=st.sampled_from([(), (0,), tuple(range(7))]),
    start=st.sampled_from([time(0), time(9), time(23, 59)]),
    end=st.sampled_from([time(0), time(9), time(23, 59)]),
    zone=st.sampled_from(["UTC", "Europe/Berlin"]),
    gpu_uuids=st.sampled_from([(), (gpu_uuid(0),), (gpu_uuid(77),)]),
    share_pct=st.sampled_from([0.0, 1e-9, 50.0, 100.0]),
    kept=st.booleans(),
)
budgets = st.builds(
    Budget,
    limit=st.sampled_from([0.0, 1e-9, 100.0]),
    spent=st.sampled_from([0.0, 100.0, 1e9]),
    committed=st.sampled_from([0.0, 50.0]),
    resets_at=MOMENTS.filter(lambda at: at > NOW),
    zone=st.just("UTC"),
)
quotas = st.builds(
    Quota,
    share_pct=st.sampled_from([None, 0.0, 1e-9, 30.0, 100.0]),
    share_is_limit=st.booleans(),
    gpus=st.sampled_from([None, 0, 1]),
    jobs=st.sampled_from([None, 0, 1]),
    memory_bytes=st.sampled_from([None, 0, 20 * GIB]),
    reserved_pct=st.sampled_from([0.0, 20.0, 100.0]),
)


def account(name: str, capacity: Capacity) -> st.SearchStrategy[UserAccount]:
    return st.builds(
        UserAccount,
        owner=st.just(name),
        quota=quotas,
        weight=PARTS,
        usage=st.none() | PARTS,
        target=PARTS,
        gpus=st.integers(0, 3),
        jobs=st.integers(0, 3),
        charge=st.sampled_from([0.0, 0.3, 2.0, 1e6]),
        owed=st.sampled_from([-1.0, 0.0, 1e-18, 1.0]),
        capacity=st.just(capacity),
        budget=st.none() | budgets,
        windows=st.lists(windows, max_size=1).map(tuple),
    )


@st.composite
def odd(draw: st.DrawFn) -> tuple[list[QueuedJob], Slots]:
    slots = draw(machines())
    uuids = tuple(gpu.gpu_uuid for gpu in slots.gpus)
    capacity = Capacity(gpu_uuids=uuids, gpu_bytes=draw(st.sampled_from([None, 0, 80 * GIB])))
    multipliers = {uuid: draw(PARTS) for uuid in uuids if draw(st.booleans())}
    running = tuple(
        replace(job, typical=draw(st.none() | LENGTHS), started_at=draw(MOMENTS))
        for job in slots.running
    )
    changed: dict[str, Any] = {
        "running": running,
        "people": {name: draw(account(name, capacity)) for name in PEOPLE},
        "windows": tuple(draw(st.lists(windows, max_size=2))),
        "throttle": replace(slots.throttle, multipliers=multipliers, reason="load"),
    }
    return [_odd_job(draw, job) for job in draw(queues())], replace(slots, **changed)


def _odd_job(draw: st.DrawFn, job: QueuedJob) -> QueuedJob:
    begins = Blocker(code=BlockerCode.BEGIN_TIME, until=draw(MOMENTS))
    follows = Blocker(code=BlockerCode.DEPENDENCY, jobs=(draw(st.integers(1, 104)),))
    p50 = draw(st.none() | LENGTHS)
    return dataclasses.replace(
        job,
        submitted_at=draw(MOMENTS),
        time_limit=draw(st.none() | LENGTHS),
        expected=None if p50 is None else RunTime(p50, p50 + draw(LENGTHS)),
        preemptible=draw(st.booleans()),
        waits=draw(st.sampled_from([(), (), job.waits, (begins,), (follows,)])),
    )


@settings(max_examples=80, deadline=None)
@given(odd())
def test_each_job_gets_a_place_or_reasons_and_an_estimate(
    case: tuple[list[QueuedJob], Slots],
) -> None:
    queue, slots = case
    policy = PlanPolicy(cpu_jobs=2)

    made = plan(queue, slots, policy, NOW)
    estimates = forecast(queue, slots, policy, NOW)

    ids = sorted(job.id for job in queue)
    assert sorted([*(p.job_id for p in made.placements), *made.blockers]) == ids
    assert sorted(estimates) == ids
    for estimate in estimates.values():
        times = [at for at in (estimate.p50, estimate.p90) if at is not None]
        assert times == sorted(times)
        assert all(at >= NOW for at in times)


@settings(max_examples=30, deadline=None)
@given(odd())
def test_a_job_that_is_not_submitted_yet_gets_an_answer_too(
    case: tuple[list[QueuedJob], Slots],
) -> None:
    queue, slots = case
    if queue:
        answer = what_if(queue[0], queue[1:], slots, PlanPolicy(cpu_jobs=2), NOW)

        assert answer.starts_now or answer.blockers
