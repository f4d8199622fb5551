"""The forecast is the planner run forward: it preempts, backfills and waits as the planner."""

from __future__ import annotations

import dataclasses
from datetime import datetime, time, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from scheduler.facts.blockers import Blocker, BlockerCode, Tier
from scheduler.facts.jobs import Ends, QueuedJob, Requirement
from scheduler.facts.people import Budget, Capacity, Quota, UserAccount, Window
from scheduler.facts.plans import PlanPolicy, RunningJob, Slot, Slots
from scheduler.queue.planner.forecasts import Estimate, forecast
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, gpu_uuid, queued_job, slot
from tests.scheduler.queue.planner.test_planning_whole import machines, queues

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
ALONE = Requirement(exclusive=True)


def runs(id: int, on: int = 0, hours: float = 2.0, **changes: Any) -> RunningJob:
    """Bob's job has had a GPU alone for half an hour; half of such jobs end after `hours`."""
    facts: dict[str, Any] = {
        "id": id, "owner": "bob", "priority": 3, "requirement": ALONE,
        "gpu_uuids": (gpu_uuid(on),), "started_at": NOW - HOUR / 2,
        "lasts": 2 * HOUR * hours, "typical": HOUR * hours,
    }  # fmt: skip
    return RunningJob(**(facts | changes))


def waits(id: int, hours: float = 1.0, **changes: Any) -> QueuedJob:
    return queued_job(id, time_limit=HOUR * hours, **({"requirement": ALONE} | changes))


def taken(job: RunningJob, on: int = 0) -> Slot:
    return slot(on, jobs=(job.id,), held_bytes=(0,), exclusive=True)


def starts(
    queue: list[QueuedJob], gpus: list[Slot], *running: RunningJob, **more: Any
) -> dict[int, Estimate]:
    slots = Slots(host="gpubox", gpus=tuple(gpus), running=running, **more)
    return forecast(queue, slots, PlanPolicy(), NOW)


def after(estimate: Estimate) -> timedelta:
    assert estimate.p50 is not None
    return estimate.p50 - NOW


def test_idle_work_leaves_at_once_and_the_job_starts_within_seconds() -> None:
    idle = runs(9, preemptible=True, idle_work=True)

    assert after(starts([waits(1)], [taken(idle)], idle)[1]) <= timedelta(seconds=15)


def test_a_gpu_that_is_freed_for_a_job_goes_to_it_and_not_to_those_before_it() -> None:
    leaves, stays = runs(8, preemptible=True, yields=True), runs(9, on=1)
    gpus = [replace(taken(leaves), reserved_for=2), taken(stays, 1)]

    estimates = starts([waits(1), waits(2)], gpus, leaves, stays)

    assert after(estimates[2]) <= timedelta(seconds=5)
    assert after(estimates[1]) > HOUR / 2


def test_a_gpu_is_kept_for_a_minute_for_a_job_that_does_not_come() -> None:
    later = Blocker(code=BlockerCode.BEGIN_TIME, until=NOW + 8 * HOUR)

    kept = starts([waits(1), waits(2, waits=(later,))], [slot(0, reserved_for=2)])

    assert after(kept[1]) <= 2 * MINUTE


def test_a_job_preempts_as_soon_as_the_other_has_run_for_the_minimum_time() -> None:
    low = runs(9, priority=1, preemptible=True, started_at=NOW - 4 * MINUTE, hours=9)

    found = starts([waits(1, priority=5)], [taken(low)], low)[1]

    assert 6 * MINUTE <= after(found) <= 7 * MINUTE


def test_a_preempted_job_waits_again_and_comes_before_later_ones() -> None:
    low = runs(9, priority=2, preemptible=True, hours=1)
    later = waits(2, priority=2, submitted_at=NOW, owner="bob")

    found = starts([waits(1, priority=5, typical=HOUR), later], [taken(low)], low)

    assert after(found[1]) <= timedelta(seconds=15)
    assert after(found[2]) >= 2 * HOUR


def test_a_running_job_ends_when_its_progress_says() -> None:
    reports = runs(9, hours=9, ends=Ends(NOW + 7 * MINUTE, NOW + 9 * MINUTE))

    found = starts([waits(1)], [taken(reports)], reports)[1]

    assert (found.p50, found.p90) == (NOW + 7 * MINUTE, NOW + 9 * MINUTE + MINUTE / 3)


def test_small_jobs_are_backfilled_before_a_large_one() -> None:
    other = runs(9, hours=4, lasts=4 * HOUR)
    large = waits(1, requirement=Requirement(gpus=2, exclusive=True), owner="carol")
    queue = [large, *(waits(n, submitted_at=NOW) for n in (2, 3, 4, 5))]

    found = starts(queue, [taken(other), slot(1)], other)

    assert [after(found[n]) for n in (2, 3, 4)] == [timedelta(), HOUR, 2 * HOUR]
    assert after(found[1]) == 3.5 * HOUR
    assert after(found[5]) == 4.5 * HOUR


def test_a_batch_frees_its_gpus_with_its_last_job() -> None:
    item = runs(9, hours=1, requirement=Requirement(exclusive=True, batch=4))
    more = waits(2, hours=1, requirement=Requirement(exclusive=True, batch=4), owner="bob",
                 submitted_at=NOW - HOUR)  # fmt: skip
    gpu = slot(0, jobs=(9,), exclusive=True, batch=4)

    found = starts([waits(1, submitted_at=NOW - 2 * HOUR), more], [gpu], item)

    assert after(found[2]) == HOUR / 2
    assert after(found[1]) == 1.5 * HOUR


def test_a_batch_keeps_its_gpus_until_the_items_that_are_no_jobs_yet_have_ended() -> None:
    own = Requirement(exclusive=True, batch=4)
    item, more = runs(9, hours=1, requirement=own), waits(2, requirement=own, owner="bob")
    coming = tuple(dataclasses.replace(more, id=n) for n in (11, 12, 13))
    gpu = slot(0, jobs=(9,), exclusive=True, batch=4)

    found = starts([waits(1, submitted_at=NOW - 2 * HOUR), more], [gpu], item, coming=coming)

    assert after(found[2]) == HOUR / 2
    assert after(found[1]) == 4.5 * HOUR
    assert found.keys() == {1, 2}


def test_items_that_are_no_jobs_yet_come_after_those_that_are() -> None:
    item, first = waits(1, hours=1), waits(2, hours=1)

    found = starts([item, first], [slot(0)], coming=(dataclasses.replace(item, id=11),))

    assert after(found[2]) == HOUR


def test_a_spent_budget_comes_back_the_next_day() -> None:
    budget = Budget(limit=60, spent=60, committed=0, resets_at=NOW + 3 * HOUR, zone="UTC")
    shared = Capacity(gpu_uuids=(gpu_uuid(0),), gpu_bytes=80 * GIB)
    people = {"alice": UserAccount(owner="alice", quota=Quota(), budget=budget, capacity=shared)}

    found = starts([waits(1), waits(2)], [slot(0), slot(1)], people=people)

    assert [after(found[n]) for n in (1, 2)] == [3 * HOUR, 27 * HOUR]


def test_jobs_of_a_chain_start_one_after_the_other_while_others_take_turns() -> None:
    follows = (Blocker(code=BlockerCode.DEPENDENCY, tier=Tier.NOT_YET, jobs=(1,)),)
    queue = [waits(1), waits(2, waits=follows), waits(3, owner="bob", submitted_at=NOW)]

    found = starts(queue, [slot()])

    assert {after(found[n]) for n in (2, 3)} == {HOUR, 2 * HOUR}
    assert after(found[1]) == timedelta()


@settings(max_examples=40, deadline=None)
@given(queues(), machines())
def test_exactly_the_jobs_that_the_plan_places_start_now(
    queue: list[QueuedJob], slots: Slots
) -> None:
    made = plan(queue, slots, PlanPolicy(), NOW)
    placed = {each.job_id: each.gpu_uuids for each in made.placements}
    found = forecast(queue, slots, PlanPolicy(), NOW)

    assert found.keys() == {job.id for job in queue}
    assert {id for id, each in found.items() if each.p50 == NOW} == placed.keys()
    for id, each in found.items():
        assert id not in placed or each.gpu_uuids == placed[id]
        assert each.p90 is None or (each.p50 is not None and each.p50 <= each.p90)


@pytest.mark.parametrize("jobs", [1, 5, 40])
def test_a_gpu_serves_one_exclusive_job_at_a_time(jobs: int) -> None:
    queue = [waits(n, hours=0.5 + n % 3, owner=f"user{n % 4}") for n in range(1, jobs + 1)]
    spans: dict[str, list[tuple[datetime, datetime]]] = {}
    for each in starts(queue, [slot(0), slot(1)]).values():
        assert each.p50 is not None
        assert each.end is not None
        for uuid in each.gpu_uuids:
            spans.setdefault(uuid, []).append((each.p50, each.end))

    assert sum(map(len, spans.values())) == jobs
    for on_gpu in spans.values():
        on_gpu.sort()
        assert all(end <= start + MINUTE for (_, end), (start, _) in pairwise(on_gpu))


def test_overdue_jobs_come_one_after_the_other() -> None:
    pairs = Requirement(gpus=2, exclusive=True)
    queue = [
        waits(n, requirement=pairs, owner=owner, submitted_at=NOW - HOUR * (40 - n))
        for n, owner in ((1, "bob"), (2, "carol"), (3, "bob"), (4, "carol"))
    ]
    ran = runs(9, hours=1)

    found = starts(queue, [taken(ran), slot(1)], ran)

    assert [after(found[n]) for n in (1, 2, 3, 4)] == [HOUR * (n + 0.5) for n in range(4)]


def test_a_job_that_fits_between_no_windows_ends_the_forecast_early() -> None:
    kept = Window(id=1, holder="carol", members=frozenset({"carol"}), days=tuple(range(7)),
                  start=time(8), end=time(20), zone="UTC")  # fmt: skip
    queue = [waits(1, hours=13), waits(2, hours=2)]

    found = starts(queue, [slot()], windows=(kept,))

    assert found[1].p50 is None
    assert after(found[2]) == 8 * HOUR
