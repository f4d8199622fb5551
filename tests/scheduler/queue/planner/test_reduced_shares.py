from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.people import Capacity, Quota, UserAccount
from scheduler.facts.plans import Holder, Plan, PlanPolicy, RunningJob, Slot, Slots, Throttle
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, gpu_uuid, queued_job, slot

HOG = Holder(name="hal/python", memory_bytes=20 * GIB)
GPUS = Capacity(gpu_uuids=tuple(gpu_uuid(index) for index in range(4)), gpu_bytes=80 * GIB)


def user(name: str, share_pct: float | None, reserved_pct: float = 20.0) -> UserAccount:
    quota = Quota(share_pct=share_pct, reserved_pct=reserved_pct)
    return UserAccount(owner=name, quota=quota, capacity=GPUS)


def hogged(index: int) -> Slot:
    return slot(index, free_bytes=59 * GIB, foreign=(HOG,))


def planned(
    queue: list[QueuedJob],
    gpus: tuple[Slot, ...],
    people: tuple[UserAccount, ...],
    multipliers: dict[str, float],
    running: tuple[RunningJob, ...] = (),
) -> Plan:
    slots = Slots(
        host="gpubox",
        gpus=gpus,
        people={one.owner: one for one in people},
        running=running,
        throttle=Throttle(multipliers=multipliers, reason="somebody hogs one"),
    )
    return plan(queue, slots, PlanPolicy(), NOW)


def codes(made: Plan, job: int) -> list[str]:
    return [blocker.code for blocker in made.blockers.get(job, ())]


def test_a_hog_on_one_gpu_keeps_no_user_off_the_three_empty_ones() -> None:
    gpus = (slot(0), slot(1), slot(2), hogged(3))
    queue = [
        queued_job(1, owner="fay", requirement=Requirement(memory_bytes=19 * GIB)),
        queued_job(2, owner="cyd", requirement=Requirement(exclusive=True)),
    ]

    made = planned(queue, gpus, (user("fay", 5), user("cyd", 20)), {gpu_uuid(3): 0.1})

    assert sorted(placement.job_id for placement in made.placements) == [1, 2]
    assert all(gpu_uuid(3) not in placement.gpu_uuids for placement in made.placements)


def test_a_second_job_also_gets_an_empty_gpu_while_no_other_user_waits() -> None:
    gpus = (slot(0), slot(1), hogged(2))
    queue = [
        queued_job(id_, owner="fay", requirement=Requirement(exclusive=True)) for id_ in (1, 2)
    ]

    made = planned(queue, gpus, (user("fay", 5),), {gpu_uuid(2): 0.1})

    assert len(made.placements) == 2


def test_a_loaded_gpu_takes_no_more_than_the_reduced_share_of_it() -> None:
    """A share of 30 % counts as 3 % on a GPU with a multiplier of 0.1."""

    def refused(gib: int, priority: int = 3) -> list[str]:
        job = queued_job(
            1, owner="alice", priority=priority, requirement=Requirement(memory_bytes=gib * GIB)
        )
        return codes(planned([job], (hogged(0),), (user("alice", 30, 0),), {gpu_uuid(0): 0.1}), 1)

    assert refused(2) == []
    assert refused(3) == ["ShareReduced"]
    assert refused(3, priority=4) == []


def test_what_a_user_holds_on_a_loaded_gpu_counts_towards_the_reduced_share() -> None:
    there = RunningJob(
        id=9,
        owner="alice",
        priority=3,
        requirement=Requirement(memory_bytes=30 * GIB),
        gpu_uuids=(gpu_uuid(0),),
        started_at=NOW - timedelta(hours=1),
    )
    loaded = slot(0, free_bytes=40 * GIB, foreign=(HOG,), jobs=(9,), held_bytes=(30 * GIB,))
    half = {gpu_uuid(0): 0.5}
    small = Requirement(memory_bytes=8 * GIB)

    def refused(owner: str) -> list[str]:
        job = queued_job(1, owner=owner, requirement=small)
        people = (user("alice", 80, 0), user("bob", 80, 0))
        return codes(planned([job], (loaded,), people, half, (there,)), 1)

    assert refused("bob") == []
    assert refused("alice") == ["ShareReduced"]


def test_a_user_alone_on_a_gpu_is_not_limited_by_a_multiplier() -> None:
    alone = slot(0, free_bytes=40 * GIB, jobs=(9,), held_bytes=(40 * GIB,))
    there = RunningJob(
        id=9,
        owner="alice",
        priority=3,
        requirement=Requirement(memory_bytes=40 * GIB),
        gpu_uuids=(gpu_uuid(0),),
        started_at=NOW,
    )
    job = queued_job(1, owner="alice", requirement=Requirement(memory_bytes=30 * GIB))

    made = planned([job], (alone,), (user("alice", 10),), {gpu_uuid(0): 0.1}, (there,))

    assert len(made.placements) == 1


def test_two_jobs_placed_in_one_pass_both_count_towards_the_reduced_share() -> None:
    queue = [
        queued_job(id_, owner="alice", requirement=Requirement(memory_bytes=2 * GIB))
        for id_ in (1, 2)
    ]

    made = planned(queue, (hogged(0),), (user("alice", 30, 0),), {gpu_uuid(0): 0.1})

    assert len(made.placements) == 1
    assert codes(made, 2) == ["ShareReduced"]


multipliers = st.sampled_from([0.05, 0.1, 0.5, 1.0])
shares = st.one_of(st.none(), st.floats(0, 100))


@given(
    st.lists(st.tuples(st.booleans(), multipliers), min_size=1, max_size=4),
    st.lists(shares, min_size=1, max_size=4),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 59)),
)
def test_one_job_is_always_possible_on_an_empty_gpu(
    loaded: list[tuple[bool, float]], share: list[float | None], priority: int, gib: int | None
) -> None:
    """An empty GPU takes a user's first job, also with load, hogs and any mode elsewhere."""
    gpus = tuple(hogged(i) if is_loaded else slot(i) for i, (is_loaded, _) in enumerate(loaded))
    people = tuple(user(f"user{number}", pct) for number, pct in enumerate(share))
    request = Requirement(memory_bytes=None if gib is None else gib * GIB)
    queue = [
        queued_job(id_, owner=one.owner, priority=priority, requirement=request)
        for id_, one in enumerate(people, start=1)
    ]

    parts = {gpu_uuid(index): part for index, (_, part) in enumerate(loaded)}
    made = planned(queue, gpus, people, parts)

    empty = sum(not is_loaded for is_loaded, _ in loaded)
    assert len(made.placements) >= min(empty, len(queue))
    assert not any("ShareExceeded" in codes(made, job.id) for job in queue)
