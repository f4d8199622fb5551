from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.facts.blockers import Blocker, BlockerCode, Tier
from scheduler.facts.jobs import DependencyKind, PriorityClass, QueuedJob, Requirement
from scheduler.facts.people import Capacity, Quota, UserAccount, Window
from scheduler.facts.plans import Holder, PlanPolicy, RunningJob, Slot, Slots, Throttle
from scheduler.jobs.policy import Condition, waits
from scheduler.queue.planner import forecasts as forecast_module
from scheduler.queue.planner.forecasts import Estimate, forecast, what_if
from scheduler.queue.planner.order import OrderPolicy, order_factors
from tests.builders import GIB, NOW, gpu_uuid, queued_job, slot

POLICY = PlanPolicy()


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def running(id: int, on: int = 0, lasts: float | None = 2.0, **changes: Any) -> RunningJob:
    """Bob's job has a GPU alone since now, for at most two hours, one as likely as not."""
    facts: dict[str, Any] = {
        "id": id,
        "owner": "bob",
        "priority": 3,
        "requirement": Requirement(exclusive=True),
        "gpu_uuids": (gpu_uuid(on),),
        "started_at": NOW,
        "lasts": None if lasts is None else hours(lasts),
        "typical": None if lasts is None else hours(lasts / 2),
    }
    return RunningJob(**(facts | changes))


def busy(job: RunningJob, on: int = 0) -> Slot:
    return slot(on, jobs=(job.id,), exclusive=True)


def waiting(id: int, lasts: float | None = 1.0, **changes: Any) -> QueuedJob:
    limit = None if lasts is None else hours(lasts)
    return queued_job(id, time_limit=limit, **({"exclusive": True} | changes))


def estimates(
    queue: list[QueuedJob], gpus: list[Slot], *ran: RunningJob, **changes: Any
) -> dict[int, Estimate]:
    slots = Slots(host="gpubox", gpus=tuple(gpus), running=ran, **changes)
    return forecast(queue, slots, POLICY, NOW)


def at(number: float) -> datetime:
    return NOW + hours(number)


def test_what_can_start_starts_now() -> None:
    assert estimates([waiting(1)], [slot()]) == {1: Estimate(position=1, p50=NOW, p90=NOW)}


def test_it_starts_when_the_one_before_it_ends() -> None:
    ran = running(9)

    assert estimates([waiting(1)], [busy(ran)], ran) == {
        1: Estimate(position=1, p50=at(1), p90=at(2))
    }


def test_each_waits_for_those_before_it() -> None:
    ran = running(9)
    queue = [waiting(1, lasts=3), waiting(2)]

    assert estimates(queue, [busy(ran)], ran)[2] == Estimate(position=2, p50=at(4), p90=at(16 / 3))


def test_it_takes_the_gpu_that_is_free_first() -> None:
    first, second = running(8, on=0, lasts=8), running(9, on=1, lasts=2)

    gpus = [busy(first, 0), busy(second, 1)]
    assert estimates([waiting(1)], gpus, first, second)[1].p90 == at(2)


def test_a_job_on_two_gpus_waits_for_both() -> None:
    first, second = running(8, on=0, lasts=8), running(9, on=1, lasts=2)

    gpus = [busy(first, 0), busy(second, 1)]
    assert estimates([waiting(1, gpus=2)], gpus, first, second)[1].p90 == at(8)


def test_shared_jobs_wait_for_memory_alone() -> None:
    ran = [running(n, lasts=n, requirement=Requirement(memory_bytes=40 * GIB)) for n in (2, 4)]
    full = slot(jobs=(2, 4), held_bytes=(40 * GIB, 40 * GIB), free_bytes=0)
    queue = [waiting(1, exclusive=False, memory_bytes=30 * GIB)]

    assert estimates(queue, [full], *ran)[1].p90 == at(2)


def test_nobody_can_tell_after_a_job_that_may_last_for_ever() -> None:
    ran = running(9, lasts=None)

    assert estimates([waiting(1)], [busy(ran)], ran)[1] == Estimate(position=1, p50=None, p90=None)


def test_one_that_lasts_longer_than_expected_is_expected_to_go_on_a_while() -> None:
    ran = running(9, lasts=2, started_at=at(-10))

    assert estimates([waiting(1)], [busy(ran)], ran)[1].p50 == at(1)


def test_a_gpu_that_others_use_is_never_free_for_one_who_wants_it_alone() -> None:
    occupied = slot(foreign=(Holder(name="carol/python", memory_bytes=GIB),))

    assert estimates([waiting(1)], [occupied])[1].p50 is None


def test_a_gpu_that_opens_at_a_known_time_is_counted_from_then_on() -> None:
    kept = Blocker(code=BlockerCode.GPU_PAUSED, tier=Tier.MACHINE, until=at(3))

    assert estimates([waiting(1)], [slot(closed=(kept,))])[1].p50 == at(3)


def test_it_waits_for_a_begin_time_and_has_no_position_before() -> None:
    begins = Blocker(code=BlockerCode.BEGIN_TIME, tier=Tier.NOT_YET, until=at(5))

    estimate = estimates([waiting(1, waits=(begins,))], [slot()])[1]
    assert (estimate.position, estimate.p50) == (None, at(5))


def _after(*on: int) -> tuple[Blocker, ...]:
    return tuple(Blocker(code=BlockerCode.DEPENDENCY, tier=Tier.NOT_YET, jobs=(job,)) for job in on)


def test_a_job_that_follows_others_is_expected_when_the_last_of_them_has_ended() -> None:
    ran = running(1, lasts=2)
    chain = [waiting(2, waits=_after(1)), waiting(3, waits=_after(1, 2))]

    starts = estimates(chain, [busy(ran)], ran)

    assert [(e.position, e.p50, e.p90) for e in starts.values()] == [
        (None, at(1), at(2)),
        (None, at(2), at(3)),
    ]


def test_who_follows_a_job_that_may_last_for_ever_has_no_time() -> None:
    ran = running(1, lasts=None)

    assert estimates([waiting(2, waits=_after(1))], [busy(ran)], ran)[2].p50 is None


def test_a_held_job_has_no_time() -> None:
    blocker = Blocker(code=BlockerCode.HELD, tier=Tier.PERSON)

    assert estimates([waiting(1, waits=(blocker,))], [slot()])[1].p50 is None


def test_who_has_all_they_may_have_waits_for_their_own_job() -> None:
    mine = running(9, owner="alice", lasts=6)
    people = {"alice": UserAccount(owner="alice", quota=Quota(gpus=1), gpus=1, jobs=1)}

    estimate = estimates([waiting(1)], [busy(mine), slot(1)], mine, people=people)[1]
    assert estimate.p90 == at(6)


def _busy(on: int) -> dict[str, Blocker]:
    blocker = Blocker(code=BlockerCode.PRESSURE, tier=Tier.MACHINE, gpu=on)
    return {gpu_uuid(on): blocker}


def shared(id: int, **changes: Any) -> QueuedJob:
    return waiting(id, exclusive=False, memory_bytes=GIB, **changes)


def test_nobody_can_tell_when_others_leave_a_gpu_idle() -> None:
    occupied = slot(0, foreign=(Holder(name="carol/python", memory_bytes=GIB),))
    throttle = Throttle(closed_gpus={PriorityClass.NORMAL: _busy(0)})

    assert estimates([shared(1)], [occupied], throttle=throttle)[1].p50 is None


def test_a_gpu_that_our_own_jobs_keep_busy_is_open_to_one_whenever_one_ends() -> None:
    request = Requirement(memory_bytes=40 * GIB)
    ran = running(9, lasts=2, requirement=request)
    gpus = [
        slot(0, jobs=(9,), held_bytes=(40 * GIB,), free_bytes=40 * GIB),
        slot(1, foreign=(Holder(name="carol/python", memory_bytes=GIB),)),
    ]
    throttle = Throttle(closed_gpus={PriorityClass.NORMAL: {**_busy(0), **_busy(1)}})

    starts = estimates([shared(1), shared(2)], gpus, ran, throttle=throttle)
    assert (starts[1].p90, starts[2].p90) == (at(2), at(3))


def test_jobs_without_a_gpu_wait_for_a_place() -> None:
    ran = [running(n, lasts=n, requirement=Requirement(gpus=0), gpu_uuids=()) for n in (2, 4)]
    queue = [waiting(1, gpus=0, exclusive=False)]

    assert estimates(queue, [slot()], *ran, cpu_jobs=2)[1].p90 == at(2)


def nightly(share_pct: float = 100.0, **changes: Any) -> Window:
    """Kept for carol each day, from four to sixteen hours from now."""
    facts: dict[str, Any] = {
        "id": 1,
        "holder": "carol",
        "members": frozenset({"carol"}),
        "days": tuple(range(7)),
        "start": at(4).time(),
        "end": at(16).time(),
        "zone": "UTC",
        "share_pct": share_pct,
    }
    return Window(**(facts | changes))


def test_it_does_not_start_shortly_before_a_time_that_is_kept_for_others() -> None:
    ran = running(9, lasts=2)

    estimate = estimates([waiting(1, lasts=2.5)], [busy(ran)], ran, windows=(nightly(),))[1]
    assert (estimate.p50, estimate.p90) == (at(1), at(16))


def test_all_its_gpus_are_open_to_it_at_the_same_time() -> None:
    ran = running(9, on=1, lasts=3)
    windows = (nightly(gpu_uuids=(gpu_uuid(0),)),)

    gpus = [slot(0), busy(ran, 1)]
    assert estimates([waiting(1, gpus=2, lasts=2)], gpus, ran, windows=windows)[1].p90 == at(16)


def test_one_who_may_use_gpus_at_agreed_times_only_waits_for_the_next() -> None:
    windows = (nightly(kept=False, members=frozenset({"alice"})),)
    ran = running(9, lasts=15)

    assert estimates([waiting(1, lasts=3)], [busy(ran)], ran, windows=windows)[1].p90 == at(28)


def test_agreed_times_that_follow_each_other_at_once_are_one() -> None:
    mine = {"kept": False, "members": frozenset({"alice"})}
    first = nightly(**mine)
    second = nightly(id=2, start=first.end, end=at(20).time(), **mine)
    ran = running(9, lasts=10)

    estimate = estimates([waiting(1, lasts=9)], [busy(ran)], ran, windows=(first, second))[1]
    assert estimate.p90 == at(10)


def test_what_fits_between_no_two_agreed_times_has_no_time() -> None:
    ran = running(9, lasts=2)

    estimate = estimates([waiting(1, lasts=13)], [busy(ran)], ran, windows=(nightly(),))[1]
    assert (estimate.p50, estimate.p90) == (None, None)


def test_a_share_that_is_kept_leaves_the_rest_to_small_jobs() -> None:
    ran = running(9, lasts=2)
    queue = [waiting(1, lasts=3, exclusive=False, memory_bytes=20 * GIB)]

    assert estimates(queue, [busy(ran)], ran, windows=(nightly(50),))[1].p90 == at(2)


def test_a_large_job_that_is_overdue_is_counted_first() -> None:
    ran = [running(8, on=0), running(9, on=1)]
    gpus = [busy(ran[0], 0), busy(ran[1], 1)]
    people = {"alice": UserAccount(owner="alice", target=0.9), "bob": UserAccount(owner="bob")}
    large = waiting(1, gpus=2, owner="bob", submitted_at=at(-25))

    starts = estimates([waiting(2), large], gpus, *ran, people=people)
    assert (starts[1].position, starts[1].p90) == (1, at(2))
    assert starts[2].p90 == at(3)


def test_what_if_says_that_it_would_start_and_leaves_no_trace() -> None:
    slots = Slots(host="gpubox", gpus=(slot(),))

    answer = what_if(waiting(99), [], slots, POLICY, NOW)
    assert answer.starts_now
    assert answer.blockers == ()
    assert answer.estimate.p50 == NOW


def test_what_if_says_why_not_and_when() -> None:
    ran = running(9)
    slots = Slots(host="gpubox", gpus=(busy(ran),), running=(ran,))

    answer = what_if(waiting(99), [waiting(1)], slots, POLICY, NOW)
    assert not answer.starts_now
    assert {blocker.code for blocker in answer.blockers} == {"GpuTaken"}
    assert (answer.estimate.position, answer.estimate.p90) == (2, at(3))


def test_a_job_far_back_starts_after_those_that_are_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forecast_module, "FORESEEN", 3)

    slots = Slots(host="gpubox", gpus=(slot(0),))

    estimates = forecast(map(waiting, range(1, 7)), slots, POLICY, NOW)

    last = estimates[3].p50
    assert last is not None
    assert [(estimates[n].p50, estimates[n].after) for n in (4, 6)] == [(None, last)] * 2
    assert all(estimates[n].after is None for n in (1, 2, 3))


@pytest.mark.parametrize("foreseen", [1, 3, 2000])
@pytest.mark.parametrize("new", range(1, 9))
def test_what_if_tells_of_each_job_what_the_forecast_of_all_tells(
    new: int, foreseen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_module, "FORESEEN", foreseen)
    ran = running(90)
    slots = Slots(host="gpubox", gpus=(busy(ran, 0), slot(1)), running=(ran,))
    follows = waits([Condition(id=0, pending=((1, DependencyKind.END),))], {}, NOW)[0]
    queue = [
        *(waiting(id, priority=1 + id % 3, owner=f"user{id % 2}") for id in range(1, 6)),
        waiting(6, gpus=9),
        *(waiting(id, waits=follows) for id in (7, 8)),
    ]

    of_all = forecast(queue, slots, POLICY, NOW)
    (wanted,) = [job for job in queue if job.id == new]
    answer = what_if(wanted, [job for job in queue if job.id != new], slots, POLICY, NOW)

    assert answer.estimate == of_all[new]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.5, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_a_shorter_job_before_it_never_makes_one_wait_longer(
    lengths: list[float], gpus: int
) -> None:
    ran = [running(90 + n, on=n, lasts=3) for n in range(gpus)]
    slots = [busy(job, n) for n, job in enumerate(ran)]
    last = len(lengths)

    def estimate(factor: float) -> datetime:
        queue = [
            waiting(n, lasts=length * factor, submitted_at=NOW + timedelta(seconds=n))
            for n, length in enumerate([*lengths, 1.0])
        ]
        p90 = estimates(queue, slots, *ran)[last].p90
        assert p90 is not None
        return p90

    assert estimate(0.5) <= estimate(1.0)


def test_the_median_is_never_after_the_ninth_tenth() -> None:
    odd = replace(running(9), lasts=hours(1), typical=hours(3))

    estimate = estimates([waiting(1)], [busy(odd)], odd)[1]
    assert estimate.p50 is not None
    assert estimate.p90 is not None
    assert estimate.p50 <= estimate.p90


def test_what_decides_is_told_in_words() -> None:
    job = waiting(1, priority=4, submitted_at=at(-3))
    capacity = Capacity(gpu_uuids=tuple(map(gpu_uuid, range(4))))
    people = {"alice": UserAccount(owner="alice", target=0.5, charge=1.0, capacity=capacity)}
    slots = Slots(host="gpubox", gpus=tuple(slot(n) for n in range(4)), people=people)

    priority, fair, age = order_factors(job, slots, ["alice", "bob"], OrderPolicy(), NOW)
    assert (priority.value, priority.text) == (0.75, "4 (high); 5 (urgent) is served first")
    assert fair.text == "alice holds 25.0 % of the GPUs now; the fair-share target is 50.0 %"
    assert fair.value == 0.625
    assert age.text.startswith("it has waited 3 h")
