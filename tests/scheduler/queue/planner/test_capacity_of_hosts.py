"""Host memory and CPUs are reserved at placement."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from scheduler.facts.blockers import BlockerCode
from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.plans import PlanPolicy, RunningJob, Slots
from scheduler.queue.planner.capacity import HostPolicy
from scheduler.queue.planner.gates import PlannerThresholds
from scheduler.queue.planner.plan import plan
from scheduler.queue.wording import text
from tests.builders import GIB, NOW, queued_job, slot

POLICY = PlanPolicy(cpu_jobs=100, host_memory_bytes=64 * GIB, host_cpus=16.0)


def job(number: int, gib: float | None = None, cpus: float | None = None) -> QueuedJob:
    memory = None if gib is None else round(gib * GIB)
    asked = Requirement(gpus=0, host_memory_bytes=memory, cpus=cpus)
    return queued_job(number, requirement=asked, submitted_at=NOW + timedelta(seconds=number))


def running(number: int, gib: float) -> RunningJob:
    asked = Requirement(gpus=0, host_memory_bytes=round(gib * GIB))
    return RunningJob(
        id=number, owner="zoe", priority=3, requirement=asked, gpu_uuids=(), started_at=NOW
    )


def planned(
    jobs: list[QueuedJob], *there: RunningJob, policy: PlanPolicy = POLICY, **rules: Any
) -> tuple[list[int], dict[int, BlockerCode]]:
    slots = Slots(host="gpubox", gpus=(slot(0),), running=there)
    made = plan(jobs, slots, policy, NOW, PlannerThresholds(host=HostPolicy(**rules)))
    waiting = {number: why[0].code for number, why in made.blockers.items()}
    return [placement.job_id for placement in made.placements], waiting


def test_ten_jobs_of_16_gib_do_not_start_together_on_64_gib() -> None:
    started, waiting = planned([job(number, gib=16) for number in range(1, 11)])

    assert started == [1, 2, 3, 4]
    assert set(waiting.values()) == {BlockerCode.HOST_MEMORY}


def test_running_jobs_keep_what_they_declared() -> None:
    assert planned([job(1, gib=20)], running(9, 48)) == ([], {1: BlockerCode.HOST_MEMORY})
    assert planned([job(1, gib=16)], running(9, 48)) == ([1], {})


def test_cpus_are_reserved_alike() -> None:
    started, waiting = planned([job(1, cpus=12), job(2, cpus=8), job(3, cpus=4)])

    assert (started, waiting) == ([1, 3], {2: BlockerCode.HOST_CPUS})
    assert planned([job(1, cpus=12), job(2, cpus=12)], cpus_pct=200.0) == ([1, 2], {})


def test_undeclared_jobs_start_as_before_unless_the_policy_has_a_default() -> None:
    jobs = [job(number) for number in range(1, 4)]

    assert planned(jobs) == ([1, 2, 3], {})
    started, waiting = planned(jobs, default_memory_gib=32.0)
    assert (started, waiting) == ([1, 2], {3: BlockerCode.HOST_MEMORY})


def undeclared(number: int, gib: float, cpus: float) -> QueuedJob:
    """Its earlier runs took this."""
    asked = Requirement(gpus=0, usual_memory_bytes=round(gib * GIB), usual_cpus=cpus)
    return queued_job(number, requirement=asked, submitted_at=NOW + timedelta(seconds=number))


def test_undeclared_jobs_reserve_what_their_earlier_runs_took() -> None:
    jobs = [undeclared(number, gib=24, cpus=2) for number in range(1, 4)]
    assert planned(jobs) == ([1, 2], {3: BlockerCode.HOST_MEMORY})
    assert planned(jobs, from_history=False) == ([1, 2, 3], {})
    # History comes before the default.
    assert planned(jobs, default_memory_gib=64.0) == ([1, 2], {3: BlockerCode.HOST_MEMORY})

    jobs = [undeclared(number, gib=1, cpus=7) for number in range(1, 4)]
    assert planned(jobs) == ([1, 2], {3: BlockerCode.HOST_CPUS})


def test_a_job_whose_earlier_runs_took_more_than_the_host_has_starts_alone() -> None:
    assert planned([undeclared(1, gib=100, cpus=40)]) == ([1], {})
    assert planned([undeclared(1, gib=100, cpus=40)], running(9, 1))[1] == {
        1: BlockerCode.HOST_MEMORY
    }


def test_the_reason_tells_that_an_undeclared_job_waits_for_what_earlier_runs_took() -> None:
    slots = Slots(host="gpubox", running=(running(9, 48),))
    made = plan([undeclared(1, gib=20, cpus=1)], slots, POLICY, NOW)

    assert text(made.blockers[1][0]) == (
        "By its earlier runs or the policy, it needs 20 GiB of host memory;"
        " 16 GiB of 64 GiB are not reserved by jobs."
    )


def test_nothing_is_reserved_where_the_host_is_unknown_or_it_is_switched_off() -> None:
    jobs = [job(1, gib=48, cpus=12), job(2, gib=48, cpus=12)]

    assert planned(jobs, policy=PlanPolicy(cpu_jobs=100)) == ([1, 2], {})
    assert planned(jobs, memory_pct=0.0, cpus_pct=0.0) == ([1, 2], {})


def test_the_reasons_have_all_figures() -> None:
    slots = Slots(host="gpubox", running=(running(9, 48),))
    made = plan([job(1, gib=20), job(2, cpus=32)], slots, POLICY, NOW)

    (memory,), (cpus,) = made.blockers[1], made.blockers[2]
    assert text(memory) == (
        "It asks for 20 GiB of host memory; 16 GiB of 64 GiB are not reserved by jobs."
    )
    assert text(cpus) == "It asks for 32 CPUs; jobs may reserve 16 here."
    assert (memory.never, cpus.never) == (False, True)
