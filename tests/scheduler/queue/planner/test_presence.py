"""Jobs leave a GPU that a user at the desktop needs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from monitor.facts.readings import OwnerReading, Presence
from monitor.gpus.policy.presence import PresencePolicy
from scheduler.execution.steps import gpu_closures
from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import RunningJob
from scheduler.queue.planner import capacity, preemption
from scheduler.queue.wording import text
from tests.builders import NOW, gpu_uuid, snapshot

ALL = PresencePolicy(enabled=True, yields="all")
INDICES = {gpu_uuid(i): i for i in range(4)}


def owner(on: int = 0, presence: Presence = Presence.OWNER, **changes: Any) -> OwnerReading:
    facts: dict[str, Any] = {"program": "blender", "user": "alice", "pid": 7, "since": NOW}
    return OwnerReading(gpu_uuid=gpu_uuid(on), presence=presence, **(facts | changes))


def running(id: int = 1, on: tuple[int, ...] = (0,), **changes: Any) -> RunningJob:
    facts: dict[str, Any] = {
        "owner": "bob",
        "priority": 3,
        "requirement": Requirement(),
        "gpu_uuids": tuple(map(gpu_uuid, on)),
        "started_at": NOW - timedelta(hours=1),
    }
    return RunningJob(id=id, **(facts | changes))


def yielding(*jobs: RunningJob, policy: PresencePolicy = ALL, owners: Any = None) -> list[int]:
    there = owners or [owner()]
    return [y.job_id for y in preemption.owner_evictions(there, jobs, INDICES, policy)]


def test_a_gpu_that_somebody_is_on_is_closed_and_says_who() -> None:
    closures = gpu_closures.closed_by_owners("gpubox", snapshot(2, owners=(owner(1),)), NOW)

    (blocker,) = closures[gpu_uuid(1)]
    assert (blocker.code, blocker.tier, blocker.holder) == (
        "OwnerPresent",
        Tier.MACHINE,
        "alice/blender",
    )
    assert text(blocker) == "alice's blender is on GPU 1; jobs start there again when it is gone."
    assert set(closures) == {gpu_uuid(1)}


def test_it_is_closed_from_the_first_suspicion_until_they_have_been_gone() -> None:
    until = NOW + timedelta(seconds=60)
    states = {
        0: owner(0, Presence.SUSPECT),
        1: owner(1, Presence.LEAVING, until=until),
        2: owner(2, Presence.FREE),
    }
    closures = capacity.owner_closures(snapshot(3, owners=tuple(states.values())))

    assert set(closures) == {gpu_uuid(0), gpu_uuid(1)}
    assert closures[gpu_uuid(1)][0].until == until


def test_why_it_is_closed_keeps_its_key_while_they_come_and_go() -> None:
    keys = {
        capacity.owner_closures(snapshot(1, owners=(owner(0, state),)))[gpu_uuid(0)][0].key
        for state in (Presence.SUSPECT, Presence.OWNER, Presence.LEAVING)
    }

    assert len(keys) == 1


def test_only_jobs_on_that_gpu_are_asked() -> None:
    assert yielding(running(1, (0,)), running(2, (1,)), running(3, (1, 0)), running(4, ())) == [
        1,
        3,
    ]


def test_a_suspicion_asks_nobody() -> None:
    suspected = [owner(0, Presence.SUSPECT), owner(1, Presence.LEAVING)]

    assert yielding(running(1, (0,)), running(2, (1,)), owners=suspected) == []


def test_who_yields_is_for_the_policy_to_say() -> None:
    jobs = (running(1), running(2, preemptible=True), running(3, preemptible=True, yields=True))

    assert yielding(*jobs) == [1, 2]
    assert yielding(*jobs, policy=PresencePolicy(enabled=True)) == [2]
    assert yielding(*jobs, policy=PresencePolicy(enabled=True, yields="none")) == []


def test_giving_way_does_not_count_and_leaves_a_job_its_grace() -> None:
    (eviction,) = preemption.owner_evictions([owner()], [running()], INDICES, ALL)

    assert (eviction.code, eviction.counts, eviction.deadline) == ("OwnerPresent", False, None)
    assert eviction.text == "alice's blender needs GPU 0."
