"""Advice is planned forward: only changes that start the job earlier are given."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.facts.blockers import Blocker, BlockerCode, Tier
from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.plans import Holder, PlanPolicy, RunningJob, Slot, Slots, Throttle
from scheduler.queue.planner.forecasts import (
    Advice,
    AdviceFacts,
    World,
    advise,
    start_before,
    what_if,
)
from scheduler.queue.planner.gates import PlannerThresholds
from tests.builders import GIB, NOW, gpu_uuid, queued_job, slot

POLICY = PlanPolicy()
DANA = Holder(name="dana/python", memory_bytes=71 * GIB, user="dana", pid=4711)
HELD_GPU = {"free_bytes": 8 * GIB, "foreign": (DANA,)}


def world(gpus: list[Slot], *running: RunningJob, queue: list[QueuedJob] | None = None,
          host: str = "gpubox", **more: Any) -> World:  # fmt: skip
    slots = Slots(host=host, gpus=tuple(gpus), running=running, **more)
    return World(queue=queue or [], slots=slots, policy=POLICY, rules=PlannerThresholds())


def ran(id: int, on: int, hours: float, **changes: Any) -> RunningJob:
    facts: dict[str, Any] = {
        "id": id, "owner": "bob", "priority": 3, "requirement": Requirement(exclusive=True),
        "gpu_uuids": (gpu_uuid(on),), "started_at": NOW, "lasts": timedelta(hours=hours),
    }  # fmt: skip
    return RunningJob(**(facts | changes))


def taken(job: RunningJob, on: int) -> Slot:
    return slot(on, jobs=(job.id,), held_bytes=(0,), exclusive=True)


def advice(job: QueuedJob, *worlds: World, **facts: Any) -> list[Advice]:
    known = AdviceFacts(**({"most_priority": 5} | facts))
    return advise(job, {each.slots.host: each for each in worlds}, known, NOW)


def fields(answers: list[Advice]) -> list[dict[str, Any]]:
    return [dict(each.fields) for each in answers]


def pinned(on: int, **changes: Any) -> QueuedJob:
    return queued_job(1, requirement=Requirement(memory_bytes=32 * GIB, gpu_uuid=gpu_uuid(on)),
                      **changes)  # fmt: skip


def test_a_job_pinned_to_a_gpu_full_of_outside_memory_is_never_told_to_raise_its_priority() -> None:
    load = Throttle(multipliers={gpu_uuid(4): 0.1}, reason="load of other users")
    gpus = [slot(n, **(HELD_GPU if n == 4 else {})) for n in range(8)]

    answers = advice(pinned(4, priority=1), world(gpus, throttle=load))

    assert fields(answers) == [{"on_gpu": None}, {"ask": "dana", "gpu": 4}]
    assert answers[1].words == "Ask dana to free 71 GiB on GPU 4 (PID 4711)"
    assert {each.expected_start for each in answers} == {NOW}
    assert all(each.was_unknown for each in answers)


def test_a_user_whose_processes_fill_several_gpus_is_asked_for_all_that_the_job_needs() -> None:
    gpus = [slot(n, **(HELD_GPU if n < 2 else {})) for n in range(3)]
    job = queued_job(1, requirement=Requirement(gpus=3, memory_bytes=32 * GIB))

    answers = advice(job, world(gpus))

    asked = [each for each in answers if "ask" in each.fields]
    assert [each.words for each in asked] == ["Ask dana to free 142 GiB on GPUs 0, 1 (PID 4711)"]
    assert asked[0].expected_start == NOW


def test_an_owner_is_not_advised_to_ask_themselves() -> None:
    gpus = [slot(n, **(HELD_GPU if n == 4 else {})) for n in range(8)]

    answers = advice(pinned(4, owner="dana"), world(gpus))

    assert answers[1].words == "Free 71 GiB that dana's own processes hold on GPU 4 (PID 4711)"


def test_nothing_is_advised_where_nothing_helps() -> None:
    other = ran(9, 0, 2)

    assert (
        advice(queued_job(1, exclusive=True, preemptible=True), world([taken(other, 0)], other))
        == []
    )


def test_less_memory_is_advised_down_to_what_earlier_runs_needed() -> None:
    gpus = [slot(0, free_bytes=20 * GIB, foreign=(Holder(name="python"),))]
    job = queued_job(1, memory_bytes=40 * GIB)

    assert fields(advice(job, world(gpus), needed_bytes=16 * GIB)) == [{"gpu_memory": 16 * GIB}]
    assert advice(job, world(gpus), needed_bytes=24 * GIB) == []
    assert advice(job, world(gpus)) == []


def test_sharing_is_advised_to_a_job_that_wants_a_gpu_alone() -> None:
    other = ran(9, 0, 2, requirement=Requirement(memory_bytes=30 * GIB))
    gpu = slot(0, jobs=(9,), held_bytes=(30 * GIB,), free_bytes=49 * GIB)
    job = queued_job(1, exclusive=True)

    (only,) = advice(job, world([gpu], other), needed_bytes=20 * GIB)

    assert dict(only.fields) == {"exclusive": False, "gpu_memory": 20 * GIB}
    assert (only.expected_start, only.was_unknown) == (NOW, False)


def test_fewer_gpus_are_advised_where_some_are_free() -> None:
    other = ran(9, 0, 4)
    gpus = [taken(other, 0), *(slot(n) for n in (1, 2))]

    answers = advice(queued_job(1, gpus=3, exclusive=True), world(gpus, other))

    assert fields(answers)[0] == {"gpus": 2}


def test_a_job_that_can_never_start_is_told_how_many_gpus_there_are() -> None:
    answers = advice(queued_job(1, gpus=3, exclusive=True), world([slot(0), slot(1)]))

    assert fields(answers) == [{"gpus": 2}]


def test_the_lowest_priority_that_helps_is_advised_within_the_quota() -> None:
    other = ran(9, 0, 1)
    before = queued_job(2, owner="bob", exclusive=True, priority=3, time_limit=timedelta(hours=9))
    job = queued_job(1, owner="alice", exclusive=True, priority=1, submitted_at=NOW)
    busy = world([taken(other, 0)], other, queue=[before])

    assert {"priority": 3} in fields(advice(job, busy))
    assert advice(job, busy, most_priority=2) == []


def test_a_limit_that_ends_before_a_reservation_is_advised_but_not_below_the_usual_time() -> None:
    other = ran(9, 0, 1)
    large = queued_job(2, owner="bob", gpus=2, exclusive=True, priority=5)
    job = queued_job(1, exclusive=True, time_limit=timedelta(hours=5))
    busy = world([taken(other, 0), slot(1)], other, queue=[large])

    assert {"time_limit": "60min"} in fields(advice(job, busy))
    usual = queued_job(1, exclusive=True, time_limit=timedelta(hours=5), typical=timedelta(hours=2))
    assert "time_limit" not in {name for each in fields(advice(usual, busy)) for name in each}


def test_a_held_job_starts_when_it_is_released() -> None:
    held = Blocker(code=BlockerCode.HELD, tier=Tier.PERSON, holder="alice")

    answers = advice(queued_job(1, waits=(held,)), world([slot(0)]))

    assert fields(answers) == [{"held": None}]


def test_another_host_is_advised_only_if_the_owner_chose_the_host() -> None:
    other = ran(9, 0, 2)
    job = queued_job(1, exclusive=True, host="gpubox")
    hosts = world([taken(other, 0)], other), world([slot(3)], host="second")

    assert fields(advice(job, *hosts, host_is_chosen=True))[0] == {"host": None}
    assert advice(job, *hosts) == []


def test_a_small_gain_is_no_advice() -> None:
    """An hour and a half against an hour and 28 minutes is less than 5 %."""
    first, second = ran(8, 0, 1.5), ran(9, 1, 88 / 60)
    gpus = [taken(first, 0), taken(second, 1)]
    job = queued_job(1, requirement=Requirement(exclusive=True, gpu_uuid=gpu_uuid(0)))

    assert advice(job, world(gpus, first, second)) == []


def test_no_more_changes_are_planned_than_a_long_queue_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = [queued_job(n, exclusive=True) for n in range(2, 5000)]
    planned: list[int] = []
    monkeypatch.setattr(
        "scheduler.queue.planner.forecasts.start_before",
        lambda *given: planned.append(1) or start_before(given[0], [], *given[2:]),
    )

    advice(pinned(0), world([slot(0, **HELD_GPU), slot(1)], queue=queue))

    assert len(planned) == 1


@st.composite
def questions(draw: st.DrawFn) -> tuple[QueuedJob, World]:
    gpus, running = [], []
    for index in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["free", "taken", "held"]))
        if kind == "taken":
            job = ran(100 + index, index, draw(st.integers(1, 8)))
            running.append(job)
            gpus.append(taken(job, index))
        else:
            gpus.append(slot(index, **(HELD_GPU if kind == "held" else {})))
    before = [
        queued_job(n, owner="bob", exclusive=True, priority=draw(st.integers(1, 5)),
                   time_limit=timedelta(hours=draw(st.integers(1, 8))))
        for n in range(2, 2 + draw(st.integers(0, 3)))
    ]  # fmt: skip
    wanted = Requirement(
        gpus=draw(st.integers(1, 2)),
        memory_bytes=draw(st.sampled_from([None, 8 * GIB, 40 * GIB])),
        exclusive=draw(st.booleans()),
        gpu_uuid=draw(st.sampled_from(["", gpu_uuid(0)])),
    )
    limit = draw(st.sampled_from([None, timedelta(hours=1), timedelta(hours=6)]))
    job = queued_job(1, owner="alice", requirement=wanted, time_limit=limit,
                     priority=draw(st.integers(1, 5)))  # fmt: skip
    return job, world(gpus, *running, queue=before)


@settings(max_examples=60)
@given(questions(), st.sampled_from([None, 4 * GIB, 30 * GIB]))
def test_each_advised_change_of_the_request_starts_the_job_when_promised(
    question: tuple[QueuedJob, World], needed: int | None
) -> None:
    job, busy = question
    now_ = what_if(job, busy.queue, busy.slots, busy.policy, NOW, busy.rules).estimate.p50

    for each in advice(job, busy, needed_bytes=needed):
        if "ask" in each.fields:
            continue
        changed = applied(job, dict(each.fields))
        start = what_if(changed, busy.queue, busy.slots, busy.policy, NOW, busy.rules).estimate.p50
        assert start == each.expected_start
        assert now_ is None or now_ - start >= timedelta(seconds=30)
        assert needed is None or (changed.requirement.memory_bytes or needed) >= min(
            needed, job.requirement.memory_bytes or needed
        )


def applied(job: QueuedJob, change: dict[str, Any]) -> QueuedJob:
    """The job as REST would change it."""
    names = {"gpu_memory": "memory_bytes", "on_gpu": "gpu_uuid"}
    wanted = {
        names.get(name, name): "" if name == "on_gpu" else value
        for name, value in change.items()
        if name in ("gpu_memory", "on_gpu", "gpus", "exclusive")
    }
    own = {name: value for name, value in change.items() if name in ("priority", "preemptible")}
    if limit := change.get("time_limit"):
        own["time_limit"] = timedelta(minutes=int(limit.removesuffix("min")))
    assert wanted.keys() | own.keys() == {names.get(name, name) for name in change}
    requirement = dataclasses.replace(job.requirement, **wanted)
    return dataclasses.replace(job, requirement=requirement, **own)
