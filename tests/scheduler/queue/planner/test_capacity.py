from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts.accounts import ClaimFact
from monitor.facts.gpus import Condition
from monitor.facts.readings import ComputeMode, Health, Limits, ProcessReading, Snapshot
from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import PlanPolicy, Slot, Slots
from scheduler.queue.planner import capacity, matching
from scheduler.queue.planner.plan import plan
from scheduler.queue.wording import text
from tests.builders import GIB, NOW, claim, gpu, gpu_uuid, host, process, queued_job, snapshot

POLICY = PlanPolicy(margin_bytes=0)


def _slot(
    processes: list[ProcessReading] | None = None,
    claims: list[ClaimFact] | None = None,
    policy: PlanPolicy = POLICY,
    **of_gpu: Any,
) -> Slot:
    latest = snapshot([gpu(0, **of_gpu)], processes or [])
    return capacity.slots(latest, claims or [], policy, NOW, host="gpubox").gpus[0]


def test_it_finds_an_idle_gpu_free() -> None:
    assert _slot().free_bytes == 80 * GIB


def test_it_subtracts_what_foreign_processes_hold() -> None:
    slot = _slot([process(memory_bytes=45 * GIB)], memory_used_bytes=45 * GIB)

    assert slot.free_bytes == 35 * GIB
    assert [(h.name, h.memory_bytes) for h in slot.foreign] == [("alice/python", 45 * GIB)]


def test_it_believes_the_driver_when_processes_admit_to_less() -> None:
    slot = _slot([process(memory_bytes=GIB)], memory_used_bytes=30 * GIB)

    assert slot.free_bytes == 50 * GIB
    assert [h.name for h in slot.foreign] == ["a process that can't be seen", "alice/python"]


def test_it_believes_processes_when_the_driver_admits_to_less() -> None:
    assert _slot([process(memory_bytes=30 * GIB)], memory_used_bytes=GIB).free_bytes == 50 * GIB


def test_it_holds_a_declaration_before_the_job_uses_it() -> None:
    assert _slot(claims=[claim(memory_bytes=20 * GIB)]).free_bytes == 60 * GIB


def test_it_counts_what_our_job_uses_once() -> None:
    ours = process(memory_bytes=15 * GIB, job_ref="1")
    slot = _slot([ours], [claim(memory_bytes=20 * GIB)], memory_used_bytes=15 * GIB)

    assert slot.free_bytes == 60 * GIB
    assert slot.foreign == ()


def test_it_counts_what_our_job_uses_beyond_its_declaration() -> None:
    ours = process(memory_bytes=30 * GIB, job_ref="1")
    slot = _slot([ours], [claim(memory_bytes=20 * GIB)], memory_used_bytes=30 * GIB)

    assert slot.free_bytes == 50 * GIB


def test_it_takes_a_process_of_a_job_that_has_ended_for_foreign() -> None:
    slot = _slot([process(job_ref="9", memory_bytes=GIB)], memory_used_bytes=GIB)

    assert slot.foreign[0].name == "job 9, which has just ended,"


def test_it_keeps_the_margin_and_what_the_driver_reserves() -> None:
    policy = PlanPolicy(margin_bytes=GIB)

    assert _slot(policy=policy, memory_reserved_bytes=2 * GIB).free_bytes == 77 * GIB


def test_it_does_not_know_what_is_free_when_the_driver_does_not_say() -> None:
    assert _slot(memory_used_bytes=None).free_bytes is None
    assert _slot(memory_total_bytes=None).free_bytes is None


def test_it_names_a_holder_whose_memory_is_unknown() -> None:
    slot = _slot([process(user=None, program=None, pid=77, memory_bytes=None)])

    assert [(h.name, h.memory_bytes) for h in slot.foreign] == [("unknown user/pid 77", None)]


def test_it_marks_what_our_jobs_are_like() -> None:
    slot = _slot(claims=[claim("2"), claim("1", memory_bytes=GIB)])

    assert (slot.jobs, slot.exclusive, slot.undeclared) == ((1, 2), False, True)
    assert _slot(claims=[claim("3", exclusive=True)]).exclusive


def test_it_marks_a_gpu_that_does_not_answer() -> None:
    slot = _slot(health=Health.LOST, problem="fell off the bus")

    assert (slot.healthy, slot.problem) == (False, "fell off the bus")


def _blocker(latest: Snapshot | None) -> str | None:
    slots = capacity.slots(latest, [], POLICY, NOW, host="gpubox").blocker
    return slots.code if slots else None


def test_it_trusts_no_old_reading() -> None:
    assert _blocker(snapshot(1, at=NOW - timedelta(seconds=9))) is None
    assert _blocker(snapshot(1, at=NOW - timedelta(seconds=11))) == "StaleReading"


def test_it_says_why_no_gpu_can_be_used() -> None:
    assert _blocker(None) == "NoReading"
    assert _blocker(snapshot(0, problem="The driver is not loaded")) == "NoGpu"


sizes = st.none() | st.integers(0, 40).map(lambda n: n * GIB)


@given(st.lists(st.tuples(sizes, st.sampled_from([None, "1", "2"])), max_size=5), sizes)
def test_it_never_finds_more_free_than_the_driver_does(
    held: list[tuple[int | None, str | None]], used: int | None
) -> None:
    processes = [
        process(100 + at, memory_bytes=memory, job_ref=job) for at, (memory, job) in enumerate(held)
    ]
    slot = _slot(processes, [claim("1"), claim("2", memory_bytes=GIB)], memory_used_bytes=used)

    assert slot.free_bytes is None or used is not None
    assert slot.free_bytes is None or 0 <= slot.free_bytes <= 80 * GIB - (used or 0)


@pytest.mark.parametrize("condition", [Condition.THROTTLED, Condition.FAILING, Condition.LOST])
def test_an_unhealthy_gpu_gets_no_new_work_and_says_why(condition: Condition) -> None:
    shot = snapshot([gpu(0, condition=condition, condition_reason="It is too hot."), gpu(1)])
    sick, well = capacity.slots(shot, [], PlanPolicy(), NOW, host="gpubox").gpus
    assert (sick.healthy, sick.problem, well.healthy) == (False, "It is too hot.", True)
    made = plan(
        [queued_job(1), queued_job(2, gpus=2)],
        Slots(host="gpubox", gpus=(sick, well)),
        PlanPolicy(),
        NOW,
    )
    assert made.placements[0].gpu_uuids == (gpu_uuid(1),)
    assert "GPU 0 can't be used: It is too hot." in [text(b) for b in made.blockers[2]]


def test_a_gpu_that_the_container_may_not_use_gets_no_job() -> None:
    machine = host(limits=Limits(visible_gpus=("1",)))
    shot = snapshot(2, host=machine)
    left_out, ours = capacity.slots(shot, [], PlanPolicy(), NOW, host="gpubox").gpus
    assert (left_out.healthy, ours.healthy) == (False, True)
    assert "NVIDIA_VISIBLE_DEVICES" in (left_out.problem or "")


def _with_peak(gib: int, claims: list[ClaimFact] | None = None, **of: Any) -> Slot:
    """One process that holds 10 GiB now and once held `gib`."""
    first = process(memory_bytes=10 * GIB, **of)
    context = capacity.CapacityContext(
        peaks={(gpu_uuid(), first.pid, first.start_ticks): gib * GIB}
    )
    shot = snapshot([gpu(0, memory_used_bytes=10 * GIB)], [first])
    return capacity.slots(shot, claims or [], POLICY, NOW, host="gpubox", context=context).gpus[0]


def test_it_keeps_a_foreign_process_its_highest_memory_and_a_tenth_more() -> None:
    assert _with_peak(30).free_bytes == (80 - 33) * GIB


def test_a_job_that_lacks_memory_is_told_what_is_kept_for_the_growth_of_a_process() -> None:
    slot = _with_peak(30)
    (blocker,) = matching.rejections(Requirement(memory_bytes=60 * GIB), slot, POLICY)

    assert slot.growth_bytes == 23 * GIB
    assert text(blocker) == (
        "GPU 0 has 47 GiB of 80 GiB free, this job asks for 60 GiB; alice/python (PID 4200001)"
        " holds 10 GiB, and 23 GiB are kept free in case processes outside the queue grow."
    )


def test_it_keeps_a_job_what_it_declared_until_it_was_seen_with_more() -> None:
    ours = [claim(memory_bytes=20 * GIB)]

    assert _with_peak(19, ours, job_ref="1").free_bytes == 60 * GIB
    assert _with_peak(30, ours, job_ref="1").free_bytes == (80 - 33) * GIB


def test_it_forgets_the_peak_of_a_process_that_has_gone() -> None:
    context = capacity.CapacityContext(peaks={(gpu_uuid(), 4_200_001, 1): 70 * GIB})
    slots = capacity.slots(snapshot(1), [], POLICY, NOW, host="gpubox", context=context)

    assert slots.gpus[0].free_bytes == 80 * GIB


def _ramping(held_gib: int, after_s: float, declared_gib: int = 40) -> int | None:
    ours = process(memory_bytes=held_gib * GIB, job_ref="1")
    start = claim(memory_bytes=declared_gib * GIB, since=NOW - timedelta(seconds=after_s))
    return _slot([ours], [start], memory_used_bytes=held_gib * GIB).ramping


def test_a_heavy_start_ramps_until_it_holds_half_or_a_minute_has_passed() -> None:
    assert _ramping(held_gib=1, after_s=5) == 1
    assert _ramping(held_gib=20, after_s=5) is None
    assert _ramping(held_gib=1, after_s=60) is None
    assert _ramping(held_gib=1, after_s=5, declared_gib=10) is None


def test_it_says_what_a_gpu_is() -> None:
    context = capacity.CapacityContext(powers={"H100": 5.0}, kept={gpu_uuid(): 9})
    slots = capacity.slots(snapshot(1), [], POLICY, NOW, host="gpubox", context=context).gpus[0]

    assert (slots.model, slots.capability, slots.power) == ("NVIDIA H100 80GB HBM3", (9, 0), 5.0)
    assert slots.reserved_for == 9


def test_a_claim_that_is_no_job_s_is_none_of_its_jobs() -> None:
    assert _slot(claims=[claim("lock-77-1"), claim("3", memory_bytes=GIB)]).jobs == (3,)


@pytest.mark.parametrize(("after_s", "expected"), [(10, True), (61, False)])
def test_what_a_young_job_does_to_its_gpu_cannot_be_seen_yet(
    after_s: float, expected: bool
) -> None:
    since = NOW - timedelta(seconds=after_s)

    assert _slot(claims=[claim(memory_bytes=GIB, since=since)]).unsettled is expected


def test_a_gpu_that_lets_one_process_in_belongs_to_the_job_that_is_there() -> None:
    mode = {"compute_mode": ComputeMode.EXCLUSIVE}
    empty, taken = _slot(**mode), _slot(claims=[claim(memory_bytes=GIB)], **mode)

    assert (empty.lone, empty.exclusive) == (True, False)
    assert taken.exclusive
    assert not _slot([process(kinds="M", job_ref="1")], [claim(memory_bytes=GIB)], **mode).exclusive
