from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.facts.jobs import CLASSES, QueuedJob, Requirement
from scheduler.facts.plans import PlanPolicy, RunningJob, Slot, Slots, Yield
from scheduler.queue import wording
from scheduler.queue.planner import gates, matching, placement
from scheduler.queue.planner.plan import plan
from scheduler.queue.planner.preemption import PreemptionPolicy, deadline_of, victims
from tests.builders import GIB, NOW, gpu_uuid, queued_job, slot

HOUR = timedelta(hours=1)
POLICY = PreemptionPolicy()
PLANNED = PlanPolicy()


def _running(id: int, on: Sequence[int] = (0,), **changes: Any) -> RunningJob:
    """Bob's preemptible background job, an hour old, alone on its GPU."""
    facts: dict[str, Any] = {
        "id": id,
        "owner": "bob",
        "priority": 1,
        "requirement": Requirement(gpus=len(on), exclusive=True),
        "gpu_uuids": tuple(gpu_uuid(index) for index in on),
        "started_at": NOW - HOUR,
        "preemptible": True,
    }
    return RunningJob(**(facts | changes))


def _shared(id: int, gib: int, on: int = 0, **changes: Any) -> RunningJob:
    return _running(id, (on,), requirement=Requirement(memory_bytes=gib * GIB), **changes)


def _slots(running: Sequence[RunningJob], gpus: int = 1, **changes: Any) -> Slots:
    """GPUs of 80 GiB with these jobs on them, as the planner would see them."""
    return Slots(
        host="gpubox",
        gpus=tuple(_slot(index, running, changes) for index in range(gpus)),
        running=tuple(running),
    )


def _slot(index: int, running: Sequence[RunningJob], changes: dict[str, Any]) -> Slot:
    here = [one for one in running if gpu_uuid(index) in one.gpu_uuids]
    held = tuple(one.requirement.memory_bytes or 0 for one in here)
    return slot(
        index,
        jobs=tuple(one.id for one in here),
        held_bytes=held,
        free_bytes=80 * GIB - sum(held),
        exclusive=any(one.requirement.exclusive for one in here),
        **changes,
    )


def _fits(job: QueuedJob) -> Callable[[Slot], bool]:
    return lambda gpu: not matching.rejections(job.requirement, gpu, PLANNED, job.id)


def _ask(
    job: QueuedJob, slots: Slots, policy: PreemptionPolicy = POLICY
) -> tuple[Yield, ...] | None:
    return victims(job, slots.running, slots, policy, NOW, _fits(job))


def _leave(job: QueuedJob, slots: Slots, policy: PreemptionPolicy = POLICY) -> list[int]:
    return [one.job_id for one in _ask(job, slots, policy) or ()]


def _wanting(**changes: Any) -> QueuedJob:
    return queued_job(99, **({"priority": 3, "exclusive": True} | changes))


def test_a_job_of_a_higher_class_makes_a_preemptible_one_leave() -> None:
    (preemption,) = _ask(_wanting(), _slots([_running(1)])) or ()

    assert (preemption.job_id, preemption.for_job, preemption.code) == (1, 99, "Preempted")
    assert preemption.text == "Job 99 of alice (normal) needs its GPU."
    assert preemption.gpu_uuids == (gpu_uuid(0),)
    assert preemption.counts


def test_inside_a_class_nobody_is_preempted() -> None:
    slots = _slots([_running(1, priority=1)])

    assert _ask(_wanting(priority=2), slots) is None
    assert _leave(_wanting(priority=3), slots) == [1]


def test_who_did_not_agree_stays() -> None:
    assert _ask(_wanting(), _slots([_running(1, preemptible=False)])) is None


def test_who_has_just_begun_stays() -> None:
    young = _running(1, started_at=NOW - timedelta(minutes=9))

    assert _ask(_wanting(), _slots([young])) is None
    assert _leave(
        _wanting(), _slots([young]), dataclasses.replace(POLICY, min_run_minutes=9.0)
    ) == [1]


def test_who_is_leaving_already_is_not_asked_again() -> None:
    assert _ask(_wanting(), _slots([_running(1, yields=True)])) is None


def test_one_who_waits_for_a_gpu_that_is_kept_for_it_asks_no_more() -> None:
    assert _ask(_wanting(), _slots([_running(1)], reserved_for=99)) is None


def test_a_gpu_that_is_kept_for_another_helps_nobody() -> None:
    assert _ask(_wanting(), _slots([_running(1)], reserved_for=7)) is None


def test_a_gpu_that_is_closed_is_not_freed() -> None:
    assert _ask(_wanting(), _slots([_running(1)], healthy=False)) is None


def test_a_preempted_job_preempts_nobody_in_its_cool_down() -> None:
    slots = _slots([_running(1)])

    assert _ask(_wanting(may_preempt_at=NOW + HOUR), slots) is None
    assert _leave(_wanting(may_preempt_at=NOW), slots) == [1]


def test_nobody_leaves_when_it_would_not_help() -> None:
    stays = _shared(2, 10, preemptible=False)

    assert _ask(_wanting(), _slots([_shared(1, 60), stays])) is None


def test_nobody_leaves_when_there_is_room() -> None:
    assert _ask(_wanting(), _slots([_running(1)], gpus=2)) is None


def test_preemption_can_be_turned_off() -> None:
    assert (
        _ask(_wanting(), _slots([_running(1)]), dataclasses.replace(POLICY, enabled=False)) is None
    )


def test_one_leaves_rather_than_two() -> None:
    two = [_shared(1, 20), _shared(2, 20, started_at=NOW - HOUR / 2)]
    one = _shared(3, 40, on=1, started_at=NOW - 9 * HOUR)
    asks = queued_job(99, memory_bytes=70 * GIB)

    assert _leave(asks, _slots([*two, one], gpus=2)) == [3]


def test_of_equals_the_least_important_leaves() -> None:
    slots = _slots([_running(1, (0,), priority=2), _running(2, (1,), started_at=NOW - 9 * HOUR)], 2)

    assert _leave(_wanting(), slots) == [2]


def test_of_equals_the_least_work_is_lost() -> None:
    slots = _slots([_running(1, (0,), started_at=NOW - 2 * HOUR), _running(2, (1,))], 2)

    assert _leave(_wanting(), slots) == [2]


def test_a_job_on_two_gpus_loses_twice_the_work() -> None:
    wide = _running(1, (0, 1), started_at=NOW - HOUR)
    slots = _slots([wide, _running(2, (2,), started_at=NOW - 1.5 * HOUR)], 3)

    assert _leave(_wanting(), slots) == [2]


def test_for_two_gpus_one_wide_job_leaves_rather_than_two_small_ones() -> None:
    wide = _running(3, (2, 3), started_at=NOW - 9 * HOUR)
    slots = _slots([_running(1, (0,)), _running(2, (1,)), wide], 4)
    (preemption,) = _ask(_wanting(gpus=2), slots) or ()

    assert (preemption.job_id, preemption.gpu_uuids) == (3, (gpu_uuid(2), gpu_uuid(3)))


def test_free_gpus_are_kept_with_those_that_are_freed() -> None:
    (preemption,) = _ask(_wanting(gpus=2), _slots([_running(1, (1,))], 2)) or ()

    assert set(preemption.gpu_uuids) == {gpu_uuid(0), gpu_uuid(1)}


def test_of_very_many_candidates_it_still_finds_a_set_that_is_not_too_large() -> None:
    many = [_shared(id_, 5, started_at=NOW - id_ * HOUR) for id_ in range(1, 13)]
    left = _leave(queued_job(99, memory_bytes=29 * GIB), _slots(many))

    assert left == [1, 2]


def test_a_gpu_without_a_job_has_its_memory_back() -> None:
    before = _slots([_shared(1, 20), _shared(2, 30)]).gpus[0]
    after = before.without({1})

    assert (after.jobs, after.free_bytes, after.held_bytes) == ((2,), 50 * GIB, (30 * GIB,))


def test_an_owner_waits_no_longer_than_the_longest_grace_of_the_policy() -> None:
    preemption = Yield(job_id=1, code="X", text="", longest_grace=timedelta(seconds=2))

    def grace(requested_at: timedelta) -> timedelta:
        return (
            deadline_of(
                preemption, grace=requested_at, requeue=False, ran_for=HOUR, policy=POLICY, now=NOW
            )
            - NOW
        )

    assert grace(timedelta(minutes=9)) == timedelta(seconds=2)
    assert grace(timedelta(seconds=1)) == timedelta(seconds=1)


def _deadline(for_job: int | None = None, **changes: Any) -> timedelta:
    facts: dict[str, Any] = {
        "grace": timedelta(minutes=2),
        "requeue": False,
        "ran_for": HOUR,
        "policy": POLICY,
        "now": NOW,
    }
    preemption = Yield(
        job_id=1, code="X", text="", for_job=for_job, deadline=changes.pop("until", None)
    )
    return deadline_of(preemption, **(facts | changes)) - NOW


def test_a_job_has_its_grace_but_no_more_than_is_allowed() -> None:
    assert _deadline() == timedelta(minutes=2)
    assert _deadline(grace=timedelta(days=2)) == timedelta(minutes=10)
    assert _deadline(until=NOW + HOUR) == HOUR


def test_an_owner_does_not_wait_for_a_young_job_that_is_run_again() -> None:
    young = timedelta(minutes=9)

    assert _deadline(ran_for=young, requeue=True) == timedelta()
    assert _deadline(ran_for=young, requeue=False) == timedelta(minutes=2)
    assert _deadline(ran_for=young, requeue=True, for_job=7) == timedelta(minutes=2)


_JOBS = st.lists(
    st.tuples(
        st.integers(0, 2),  # GPU
        st.integers(1, 5),  # priority
        st.integers(1, 6),  # tens of GiB
        st.booleans(),  # preemptible
        st.integers(0, 40),  # minutes
    ),
    max_size=7,
)


def _made(drawn: list[tuple[int, int, int, bool, int]]) -> list[RunningJob]:
    return [
        _shared(
            id_,
            10 * tens,
            on,
            priority=priority,
            preemptible=preemptible,
            started_at=NOW - timedelta(minutes=minutes),
        )
        for id_, (on, priority, tens, preemptible, minutes) in enumerate(drawn, start=1)
    ]


@settings(max_examples=50, deadline=None)
@given(_JOBS, st.integers(1, 5), st.integers(1, 3), st.integers(1, 8), st.randoms())
def test_the_smallest_set_leaves_whatever_the_order(
    drawn: list[tuple[int, int, int, bool, int]], priority: int, gpus: int, tens: int, dice: Any
) -> None:
    running = _made(drawn)
    slots = _slots(running, 3)
    job = queued_job(99, priority=priority, gpus=gpus, memory_bytes=tens * 10 * GIB)
    may = [
        one
        for one in running
        if one.preemptible
        and CLASSES[one.priority] is not CLASSES[priority]
        and one.priority < priority
        and NOW - one.started_at >= timedelta(minutes=10)
    ]

    def helps(gone: Sequence[RunningJob]) -> bool:
        return (
            sum(map(_fits(job), (gpu.without([one.id for one in gone]) for gpu in slots.gpus)))
            >= gpus
        )

    sizes = [n for n in range(len(may) + 1) if any(map(helps, combinations(may, n)))]
    preemptions = _ask(job, slots)

    if not sizes or sizes[0] == 0:
        assert preemptions is None
    else:
        assert preemptions is not None
        assert len(preemptions) == sizes[0]
        assert helps([one for one in running if one.id in {y.job_id for y in preemptions}])
        shuffled = dice.sample(running, len(running))
        other = replace(slots, running=tuple(shuffled), gpus=slots.gpus[::-1])
        assert _ask(job, other) == preemptions


class _Box:
    """Two GPUs, and jobs that need one of them alone: who is preempted waits again."""

    def __init__(self, preemptions: list[tuple[int, int, int]]) -> None:
        self.now = NOW
        self.work = {id_: minutes for id_, (_, minutes, _) in enumerate(preemptions)}
        self.wishes = {
            id_: queued_job(
                id_, priority=p, exclusive=True, submitted_at=NOW + timedelta(minutes=at)
            )
            for id_, (p, _, at) in enumerate(preemptions)
        }
        self.running: dict[int, RunningJob] = {}
        self.left: list[tuple[int, int]] = []
        self.cool: dict[int, datetime] = {}

    def slots(self) -> Slots:
        return _slots(list(self.running.values()), 2)

    def step(self) -> None:
        """Five minutes; who leaves has lost all its work, and loses it again each time."""
        for id_ in [i for i, one in self.running.items() if self._age(one) >= self.work[i]]:
            del self.running[id_]
            del self.wishes[id_]
        waiting = [j for j in self.wishes.values() if j.id not in self.running]
        due = [job for job in waiting if job.submitted_at <= self.now]
        for job in sorted(due, key=lambda job: (-job.priority, job.submitted_at, job.id)):
            self._serve(dataclasses.replace(job, may_preempt_at=self.cool.get(job.id)))
        self.now += timedelta(minutes=5)

    def _serve(self, job: QueuedJob) -> None:
        chosen = placement.choose(job.requirement, self.slots().gpus, PLANNED)
        if chosen is None:
            slots = self.slots()
            victim_ids = victims(job, slots.running, slots, POLICY, self.now, _fits(job))
            for one in victim_ids or ():
                del self.running[one.job_id]
                assert self.now >= self.cool.get(job.id, NOW)
                self.left.append((one.job_id, job.id))
                self.cool[one.job_id] = self.now + timedelta(minutes=30)
            chosen = placement.choose(job.requirement, self.slots().gpus, PLANNED)
        if chosen is not None:
            index = chosen[0].index
            self.running[job.id] = _running(
                job.id, (index,), priority=job.priority, started_at=self.now
            )

    def _age(self, one: RunningJob) -> float:
        return (self.now - one.started_at).total_seconds() / 60


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 90), st.integers(0, 200)), max_size=8))
def test_preempting_and_running_again_comes_to_an_end(
    preemptions: list[tuple[int, int, int]],
) -> None:
    box = _Box(preemptions)
    priorities = {id_: job.priority for id_, job in box.wishes.items()}
    for _ in range(1000):
        if not box.wishes:
            break
        box.step()

    assert not box.wishes
    assert all(priorities[victim] < priorities[beneficiary] for victim, beneficiary in box.left)


def test_the_search_reads_the_closed_gpus_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same for each hypothetical state of a GPU, and expensive with time windows."""
    calls = []
    original = gates.gpu_constraints

    def counted(request: Any, state: Any, gpus: Any) -> gates.Constraints:
        calls.append(request)
        return original(request, state, gpus)

    monkeypatch.setattr(gates, "gpu_constraints", counted)
    running = [_running(10 + index, (index,)) for index in range(8)]
    urgent = queued_job(1, priority=5, requirement=Requirement(exclusive=True))

    made = plan([urgent], _slots(running, gpus=8), PLANNED, NOW)

    assert len(made.preemptions) == 1
    assert len(calls) < 8


@pytest.mark.parametrize(
    ("changes", "minutes"),
    [
        ({}, 4),
        ({"priority": 3}, None),
        ({"preemptible": False}, None),
        ({"started_at": NOW - HOUR, "yields": True}, None),
        ({"started_at": NOW - HOUR}, None),
    ],
    ids=["younger", "same class", "not preemptible", "leaves already", "may be asked now"],
)
def test_a_waiting_job_names_the_moment_from_which_the_holder_may_be_asked_to_leave(
    changes: dict[str, Any], minutes: int | None
) -> None:
    holder = _running(7, **({"started_at": NOW - timedelta(minutes=6)} | changes))
    job = _wanting(owner="carla")

    (taken,) = plan([job], _slots([holder]), PLANNED, NOW).blockers[99]

    at = None if minutes is None else (NOW + timedelta(minutes=minutes)).isoformat()
    assert taken.detail("leave_from") == at
    assert ("may be asked to leave" in wording.condition(taken)) == (at is not None)
