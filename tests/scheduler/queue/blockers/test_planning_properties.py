from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.facts.blockers import Blocker, BlockerCode
from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.plans import Holder, Plan, PlanPolicy, Slot, Slots
from scheduler.queue.planner.plan import plan
from scheduler.queue.wording import text
from tests.builders import GIB, NOW, queued_job, slot

memory = st.integers(0, 96).map(lambda n: n * GIB)
requirements = st.builds(
    Requirement,
    gpus=st.integers(0, 4),
    memory_bytes=st.none() | st.integers(1, 96).map(lambda n: n * GIB),
    exclusive=st.booleans(),
)
blockers = st.none() | st.just(Blocker(code=BlockerCode.STALE_READING))


@st.composite
def gpu_slots(draw: st.DrawFn) -> tuple[Slot, ...]:
    def one(index: int) -> Slot:
        jobs = draw(st.sets(st.integers(1000, 1005), max_size=2))
        facts: dict[str, Any] = {
            "free_bytes": draw(st.none() | memory),
            "healthy": draw(st.booleans()),
            "jobs": tuple(sorted(jobs)),
            "exclusive": bool(jobs) and draw(st.booleans()),
            "undeclared": bool(jobs) and draw(st.booleans()),
            "foreign": draw(st.sampled_from([(), (Holder(name="alice/python"),)])),
        }
        return slot(index, **facts)

    return tuple(one(index) for index in range(draw(st.integers(0, 5))))


@st.composite
def queues(draw: st.DrawFn) -> list[QueuedJob]:
    def one(id_: int) -> QueuedJob:
        waited = timedelta(seconds=draw(st.integers(0, 3)))
        priority = draw(st.integers(1, 5))
        request = draw(requirements)
        return queued_job(id_, priority=priority, submitted_at=NOW + waited, requirement=request)

    return [one(id_) for id_ in range(1, draw(st.integers(0, 12)) + 1)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[QueuedJob], Slots]:
    gpus, cpu_jobs, blocker = draw(gpu_slots()), draw(st.integers(0, 3)), draw(blockers)
    return draw(queues()), Slots(host="gpubox", gpus=gpus, cpu_jobs=cpu_jobs, blocker=blocker)


def _plan(case: tuple[list[QueuedJob], Slots]) -> Plan:
    return plan(*case, PlanPolicy(cpu_jobs=2), NOW)


def _on(made: Plan, case: tuple[list[QueuedJob], Slots], gpu: Slot) -> list[Requirement]:
    requests = {job.id: job.requirement for job in case[0]}
    return [requests[p.job_id] for p in made.placements if gpu.gpu_uuid in p.gpu_uuids]


@given(cases())
def test_every_job_is_either_placed_or_told_why_not(
    case: tuple[list[QueuedJob], Slots],
) -> None:
    made = _plan(case)
    placed = [p.job_id for p in made.placements]

    assert sorted([*placed, *made.blockers]) == [job.id for job in case[0]]
    assert all(reasons and all(text(r) for r in reasons) for reasons in made.blockers.values())


@given(cases())
def test_no_gpu_is_given_more_than_it_has(case: tuple[list[QueuedJob], Slots]) -> None:
    made = _plan(case)

    for gpu in case[1].gpus:
        requested = [r.memory_bytes for r in _on(made, case, gpu) if r.memory_bytes is not None]
        assert not requested or gpu.free_bytes is None or sum(requested) <= gpu.free_bytes


@given(cases())
def test_who_is_exclusive_is_alone(case: tuple[list[QueuedJob], Slots]) -> None:
    made = _plan(case)

    for gpu in case[1].gpus:
        new = _on(made, case, gpu)
        if gpu.exclusive:
            assert not new
        if any(r.exclusive for r in new):
            assert len(new) == 1
            assert not gpu.jobs
            assert not gpu.foreign


@given(cases())
def test_nothing_shared_is_placed_on_the_unknown_or_the_sick(
    case: tuple[list[QueuedJob], Slots],
) -> None:
    made = _plan(case)

    for gpu in case[1].gpus:
        new = _on(made, case, gpu)
        assert gpu.healthy or not new
        assert gpu.free_bytes is not None or all(r.exclusive for r in new)


@given(cases())
def test_each_job_gets_as_many_gpus_as_it_asks_for(
    case: tuple[list[QueuedJob], Slots],
) -> None:
    requested = {job.id: job.requirement.gpus for job in case[0]}

    for placement in _plan(case).placements:
        assert len(set(placement.gpu_uuids)) == requested[placement.job_id]


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_in_which_jobs_are_given_changes_nothing(
    case: tuple[list[QueuedJob], Slots], shuffler: random.Random
) -> None:
    queue, slots = case
    shuffled = list(queue)
    shuffler.shuffle(shuffled)

    assert _plan((queue, slots)) == _plan((shuffled, slots))


@given(cases())
def test_a_gpu_more_frees_somebody_who_asks_for_one(case: tuple[list[QueuedJob], Slots]) -> None:
    """An empty GPU leaves nobody waiting who asks for one that is not larger than it."""
    queue, slots = case
    small = [j for j in queue if j.requirement.gpus == 1 and slots.blocker is None]
    first = small[:1]
    more = (*slots.gpus, slot(len(slots.gpus), free_bytes=96 * GIB, total_bytes=96 * GIB))

    made = _plan((first, Slots(host="gpubox", gpus=more)))

    assert len(made.placements) == len(first)
