"""Properties of a plan with everything in it: limits, throttle, promises, preemption."""

from __future__ import annotations

import dataclasses
import random
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.facts.blockers import Blocker, BlockerCode, Tier
from scheduler.facts.jobs import PriorityClass, QueuedJob, Requirement
from scheduler.facts.people import Capacity, Quota, UserAccount
from scheduler.facts.plans import Plan, PlanPolicy, RunningJob, Slot, Slots, Throttle
from scheduler.queue.planner.forecasts import forecast
from scheduler.queue.planner.placement import after_placement
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, queued_job, slot

PEOPLE = ("alice", "bob", "carol")
HELD = (Blocker(code=BlockerCode.HELD, tier=Tier.PERSON),)
CLOSED = (Blocker(code=BlockerCode.OWNER_PRESENT, tier=Tier.MACHINE),)
BUSY = Blocker(code=BlockerCode.PRESSURE, tier=Tier.MACHINE)
Case = tuple[list[QueuedJob], Slots]

hours = st.none() | st.integers(1, 5).map(lambda n: timedelta(hours=n))
requests = st.builds(
    Requirement,
    gpus=st.integers(0, 3),
    memory_bytes=st.none() | st.integers(1, 8).map(lambda n: n * 10 * GIB),
    exclusive=st.booleans(),
    capability=st.sampled_from([None, None, None, (9, 0)]),
)


@st.composite
def queues(draw: st.DrawFn) -> list[QueuedJob]:
    return [
        queued_job(
            id_,
            owner=draw(st.sampled_from(PEOPLE)),
            priority=draw(st.integers(1, 5)),
            # Equal times are what order has to cope with.
            submitted_at=NOW - timedelta(hours=draw(st.sampled_from([0, 0, 1, 30]))),
            requirement=draw(requests),
            time_limit=draw(hours),
            waits=draw(st.sampled_from([(), (), (), HELD])),
        )
        for id_ in range(1, draw(st.integers(0, 10)) + 1)
    ]


@st.composite
def machines(draw: st.DrawFn) -> Slots:
    gpus = [_gpu(draw, index) for index in range(draw(st.integers(0, 4)))]
    running = []
    for id_ in range(101, 101 + draw(st.integers(0, 4))):
        one, gpus = _run(draw, id_, gpus)
        running += [one] if one is not None else []
    quota = st.builds(Quota, gpus=st.none() | st.integers(0, 3), jobs=st.none() | st.integers(0, 3))
    shared = Capacity(gpu_uuids=tuple(gpu.gpu_uuid for gpu in gpus), gpu_bytes=80 * GIB)
    closed = draw(st.sampled_from([{}, {}, {PriorityClass.BACKGROUND: BUSY}]))
    return Slots(
        host="gpubox",
        gpus=tuple(gpus),
        cpu_jobs=draw(st.integers(0, 2)),
        running=tuple(running),
        people={
            name: UserAccount(owner=name, quota=draw(quota), target=1 / 3, capacity=shared)
            for name in PEOPLE[: draw(st.integers(0, 3))]
        },
        throttle=Throttle(closed=closed, starts=draw(st.sampled_from([None, None, 0, 1]))),
    )


def _gpu(draw: st.DrawFn, index: int) -> Slot:
    facts: dict[str, Any] = {
        "healthy": draw(st.sampled_from([True, True, True, False])),
        "closed": draw(st.sampled_from([(), (), (), CLOSED])),
        "capability": draw(st.sampled_from([(9, 0), (8, 0), None])),
        "heavy_bytes": 24 * GIB,
        "reserved_for": draw(st.sampled_from([None, None, None, 1, 99])),
    }
    return slot(index, **facts)


def _run(draw: st.DrawFn, id_: int, gpus: list[Slot]) -> tuple[RunningJob | None, list[Slot]]:
    """A job that runs somewhere it may, if there is such a place."""
    alone = draw(st.booleans())
    wants = None if alone else draw(st.integers(1, 4)) * 10 * GIB
    free = [
        gpu
        for gpu in gpus
        if not gpu.exclusive and not (alone and gpu.jobs) and (gpu.free_bytes or 0) >= (wants or 0)
    ]
    if not free:
        return None, gpus
    here = draw(st.sampled_from(free))
    asks = Requirement(exclusive=alone, memory_bytes=wants)
    job = RunningJob(
        id=id_,
        owner=draw(st.sampled_from(PEOPLE)),
        priority=draw(st.integers(1, 5)),
        requirement=asks,
        gpu_uuids=(here.gpu_uuid,),
        started_at=NOW - timedelta(hours=2),
        lasts=draw(hours),
        preemptible=draw(st.booleans()),
    )
    return job, [after_placement(gpu, id_, asks) if gpu is here else gpu for gpu in gpus]


def _plan(queue: list[QueuedJob], slots: Slots) -> Plan:
    return plan(queue, slots, PlanPolicy(), NOW)


@settings(max_examples=25)
@given(queues(), machines())
def test_every_job_is_placed_or_told_why_not(queue: list[QueuedJob], slots: Slots) -> None:
    made = _plan(queue, slots)

    assert sorted([*(p.job_id for p in made.placements), *made.blockers]) == [j.id for j in queue]
    for reasons in made.blockers.values():
        assert reasons
        assert [r.tier for r in reasons] == sorted(r.tier for r in reasons)


@settings(max_examples=25)
@given(queues(), machines())
def test_no_gpu_is_ever_given_more_than_it_has(queue: list[QueuedJob], slots: Slots) -> None:
    preemptions = {job.id: job.requirement for job in queue}
    gpus = {gpu.gpu_uuid: gpu for gpu in slots.gpus}

    for placement in _plan(queue, slots).placements:
        wish = preemptions[placement.job_id]
        assert len(set(placement.gpu_uuids)) == wish.gpus
        for uuid in placement.gpu_uuids:
            gpu = gpus[uuid]
            assert gpu.healthy
            assert not gpu.closed
            assert gpu.reserved_for in (None, placement.job_id)
            assert not gpu.exclusive
            assert not (wish.exclusive and gpu.jobs)
            assert wish.capability is None or gpu.capability == (9, 0)
            assert (gpu.free_bytes or 0) >= (wish.memory_bytes or 0)
            gpus[uuid] = after_placement(gpu, placement.job_id, wish)


@settings(max_examples=25)
@given(queues(), machines())
def test_nobody_gets_more_than_their_limits(queue: list[QueuedJob], slots: Slots) -> None:
    jobs = {job.id: job for job in queue}
    placed = [jobs[placement.job_id] for placement in _plan(queue, slots).placements]

    for name, account in slots.people.items():
        theirs = [job for job in placed if job.owner == name]
        most = account.quota
        assert most.jobs is None or len(theirs) <= most.jobs
        assert most.gpus is None or sum(job.requirement.gpus for job in theirs) <= most.gpus


@settings(max_examples=25)
@given(queues(), machines(), st.randoms(use_true_random=False))
def test_the_same_jobs_in_another_order_give_the_same_plan(
    queue: list[QueuedJob], slots: Slots, chance: random.Random
) -> None:
    shuffled = list(queue)
    chance.shuffle(shuffled)

    assert _plan(queue, slots) == _plan(shuffled, slots)


@settings(max_examples=25)
@given(queues(), machines())
def test_only_jobs_that_may_be_interrupted_are_asked_to_leave_each_once(
    queue: list[QueuedJob], slots: Slots
) -> None:
    made = _plan(queue, slots)
    able = {job.id for job in slots.running if job.preemptible}
    requests = [wish.job_id for wish in made.preemptions]

    assert set(requests) <= able
    assert len(requests) == len(set(requests))
    assert {wish.for_job for wish in made.preemptions} <= set(made.blockers)


def _first(queue: list[QueuedJob], slots: Slots) -> bool:
    """Whether the first job, alone in the queue, is placed."""
    return bool(_plan(queue[:1], slots).placements)


def _without_a_cause(slots: Slots, cause: int) -> Slots:
    """The same with one kind of obstacle gone."""
    changes: tuple[dict[str, Any], ...] = (
        {"throttle": Throttle()},
        {"people": {n: dataclasses.replace(s, quota=Quota()) for n, s in slots.people.items()}},
        {"gpus": tuple(replace(gpu, closed=()) for gpu in slots.gpus)},
        {"gpus": tuple(replace(gpu, healthy=True) for gpu in slots.gpus)},
        {"gpus": tuple(replace(gpu, reserved_for=None) for gpu in slots.gpus)},
        {"gpus": tuple(replace(gpu, ramping=None) for gpu in slots.gpus)},
        {"cpu_jobs": 0},
    )
    return replace(slots, **changes[cause])


@settings(max_examples=40)
@given(queues(), machines(), st.integers(0, 6))
def test_a_job_that_starts_also_starts_with_an_obstacle_less(
    queue: list[QueuedJob], slots: Slots, cause: int
) -> None:
    if _first(queue, slots):
        assert _first(queue, _without_a_cause(slots, cause))


@settings(max_examples=40)
@given(queues(), machines(), st.integers(0, 6))
def test_a_job_is_expected_no_later_with_an_obstacle_less(
    queue: list[QueuedJob], slots: Slots, cause: int
) -> None:
    for job in queue[:1]:
        before = forecast([job], slots, PlanPolicy(), NOW)[job.id].p90
        after = forecast([job], _without_a_cause(slots, cause), PlanPolicy(), NOW)[job.id].p90

        assert before is None or (after is not None and after <= before)
