"""Recorded jobs are played again through the planner on a simulated clock."""

from __future__ import annotations

import dataclasses
from datetime import UTC, time, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reports.capacity.policy.demand import AccountInput, Accounts, RecordedJob
from scheduler.facts.jobs import Dependency, DependencyKind, PriorityClass, Requirement
from scheduler.facts.people import Capacity, Quota, Window
from scheduler.limits.quotas.policy.quotas import QuotaPolicy
from scheduler.queue.planner.gates import PlannerThresholds
from scheduler.queue.planner.order import OrderPolicy
from tests.builders import GIB, NOW, gpu_uuid
from tests.reports.capacity.recordings import ALONE, HOUR, figures, known_gpu, played, recorded

HOUR_S = 3600.0


def test_a_job_on_a_free_gpu_does_not_wait() -> None:
    found = figures([recorded()])
    assert (found.jobs, found.p50_s, found.p90_s, found.waited_gpu_hours) == (1, 0, 0, 0)


def test_the_second_of_two_jobs_waits_for_the_end_of_the_first() -> None:
    found = figures([recorded(1), recorded(2, at_h=0.25)])
    assert found.p90_s == 0.75 * HOUR_S
    assert found.waited_gpu_hours == 0.75


def test_one_more_gpu_ends_the_wait() -> None:
    assert figures([recorded(1), recorded(2)], gpus=2).p90_s == 0


def test_jobs_that_no_gpu_can_take_are_counted_as_never_started() -> None:
    large = recorded(2, requirement=Requirement(gpus=2, exclusive=True))
    found = figures([recorded(1), large])
    assert (found.jobs, found.never) == (1, 1)


def test_a_share_of_a_gpu_is_enough_for_a_job_that_declares_its_memory() -> None:
    small = Requirement(memory_bytes=20 * GIB)
    jobs = [recorded(id, requirement=small) for id in range(1, 5)]
    # Three times 20 GiB and the margin fit into 80 GiB.
    assert [figures(jobs).p50_s, figures(jobs).p90_s] == [0, HOUR_S]


def test_memory_of_other_processes_keeps_a_job_waiting_until_it_is_free() -> None:
    held = [(NOW, {gpu_uuid(): 40 * GIB}), (NOW + 3 * HOUR, {})]
    assert figures([recorded()], foreign=held).p50_s == 3 * HOUR_S


def test_a_job_waits_for_its_dependency_but_that_is_no_wait_for_a_gpu() -> None:
    follows = (Dependency(on=1, after=DependencyKind.SUCCESS),)
    found = figures([recorded(1, hours=5), recorded(2, after=follows)], gpus=2)
    assert (found.jobs, found.p90_s) == (2, 0)


def test_jobs_of_an_array_keep_to_its_limit() -> None:
    jobs = [recorded(id, array=1, array_limit=1) for id in (1, 2)]
    assert figures(jobs, gpus=2).p90_s == HOUR_S


def test_a_begin_time_is_no_wait() -> None:
    assert figures([recorded(begin_at=NOW + 8 * HOUR)]).p90_s == 0


def limited(**limits: Any) -> AccountInput:
    """Alice's limits."""
    return AccountInput(quotas={"alice": Quota(**limits)})


def test_a_daily_budget_that_is_used_up_delays_a_job_to_the_next_day() -> None:
    jobs = [recorded(1, hours=2, lasts=2 * HOUR), recorded(2, at_h=3, lasts=HOUR)]
    found = figures(jobs, accounts=limited(gpu_minutes=150))
    midnight = timedelta(days=1) - timedelta(hours=NOW.hour + 3, minutes=NOW.minute)
    assert found.p90_s is not None
    assert midnight <= timedelta(seconds=found.p90_s) <= midnight + HOUR


def test_use_outside_jobs_counts_towards_the_budget() -> None:
    given = AccountInput(
        quotas={"alice": Quota(gpu_minutes=100)}, outside=[(NOW - HOUR, {"alice": 1.0})]
    )
    jobs = [recorded(1, owner="bob", hours=2), recorded(2, at_h=2, lasts=HOUR)]
    found = figures(jobs, gpus=2, accounts=given)
    assert found.p90_s is not None
    assert found.p90_s > 2 * HOUR_S


def test_who_used_more_before_waits_behind_who_used_less() -> None:
    jobs = [
        recorded(1, owner="carol", hours=2),
        recorded(2, at_h=0.5),
        recorded(3, at_h=1, owner="bob"),
    ]
    later = NOW + 2 * HOUR
    unused = played(jobs).starts
    used = played(jobs, accounts=AccountInput(usage={"alice": 0.9, "bob": 0.0})).starts
    assert (unused[2], used[3]) == (later, later)
    assert used[2] == later + HOUR


def test_usage_decays_while_the_clock_advances() -> None:
    accounts = Accounts(
        AccountInput(usage={"alice": 0.8}), Capacity(gpu_uuids=("a",)), QuotaPolicy()
    )
    accounts.advance(NOW, ())
    accounts.advance(NOW + timedelta(hours=QuotaPolicy().half_life_hours), ())
    account = accounts.of(["alice"], (), NOW)["alice"]
    assert account.usage == pytest.approx(0.4)


def test_a_job_that_was_held_starts_when_it_was_released() -> None:
    held = ((NOW, NOW + timedelta(minutes=90)),)
    assert figures([recorded(holds=held)]).p90_s == 5400


def test_a_class_that_the_load_held_back_starts_after_that_time() -> None:
    spans = {PriorityClass.BACKGROUND: ((NOW, NOW + timedelta(minutes=30)),)}
    jobs = [recorded(1, priority=1), recorded(2, priority=5)]
    starts = played(jobs, gpus=2, held_back=spans).starts
    assert (starts[1], starts[2]) == (NOW + timedelta(minutes=30), NOW)


def test_todays_limits_of_a_user_hold() -> None:
    jobs = [recorded(1), recorded(2)]
    assert figures(jobs, gpus=2, accounts=limited(gpus=1)).p90_s == HOUR_S


def test_an_urgent_job_preempts_one_that_allows_it_and_that_one_ends_later() -> None:
    patient = recorded(1, hours=10, priority=1, preemptible=True)
    urgent = recorded(2, at_h=1, priority=5)
    after = recorded(3, at_h=2.5, priority=5)
    found = figures([patient, urgent, after])
    # The first has 9 hours left when it continues, and makes room again.
    assert (found.jobs, found.p90_s) == (3, 0)


def test_a_time_window_of_others_delays_a_job_until_it_closes() -> None:
    local = NOW.astimezone(UTC)
    window = Window(
        id=1,
        holder="bob",
        members=frozenset({"bob"}),
        days=tuple(range(7)),
        start=time(local.hour),
        end=time((local.hour + 2) % 24),
        zone="UTC",
    )
    found = figures([recorded(at_h=0.01, hours=0.5)], windows=(window,))
    assert found.jobs == 1
    assert found.p50_s is not None
    assert found.p50_s > HOUR_S


def test_work_on_a_part_of_a_gpu_takes_longer_when_asked() -> None:
    jobs = [recorded(1), recorded(2)]
    assert figures(jobs, slowness={gpu_uuid(): 2.0}).p90_s == 2 * HOUR_S


def test_jobs_from_before_the_recording_hold_gpus_but_are_not_counted() -> None:
    jobs = [recorded(1, at_h=-5, is_counted=False, begin_at=NOW), recorded(2)]
    found = figures(jobs)
    assert (found.jobs, found.p50_s) == (1, HOUR_S)


def test_jobs_without_a_gpu_wait_for_their_places_only() -> None:
    cpu = [recorded(id, requirement=Requirement(gpus=0)) for id in (1, 2, 3)]
    assert figures(cpu).p90_s == HOUR_S


@st.composite
def queues(draw: st.DrawFn) -> list[RecordedJob]:
    count = draw(st.integers(1, 12))
    return [
        recorded(
            id,
            at_h=draw(st.integers(0, 20)) / 4,
            hours=draw(st.integers(1, 16)) / 4,
            owner=draw(st.sampled_from(["alice", "bob", "carol"])),
            priority=draw(st.integers(1, 5)),
            preemptible=draw(st.booleans()),
            requirement=dataclasses.replace(ALONE, gpus=draw(st.integers(1, 2))),
        )
        for id in range(1, count + 1)
    ]


@settings(max_examples=25)
@given(queues())
def test_every_job_starts_and_the_same_replay_gives_the_same_figures(
    jobs: list[RecordedJob],
) -> None:
    found = figures(jobs, gpus=2)
    assert (found.jobs, found.never) == (len(jobs), 0)
    assert found == figures(list(reversed(jobs)), gpus=2)


@settings(max_examples=25)
@given(queues())
def test_enough_gpus_for_all_leave_no_wait(jobs: list[RecordedJob]) -> None:
    enough = sum(job.requirement.gpus for job in jobs)
    assert figures(jobs, gpus=enough).waited_gpu_hours == 0


def test_order_and_backfill_are_the_planners() -> None:
    # Bob has nothing, so his job comes before alice's third.
    jobs = [recorded(1), recorded(2), recorded(3, owner="bob", at_h=0.5)]
    rules = PlannerThresholds(order=OrderPolicy(age_weight=0.0))
    assert figures(jobs, rules=rules).waited_gpu_hours == 2.0 + 0.5
    assert figures([*jobs[:2], replace(jobs[2], owner="alice")]).waited_gpu_hours == 1.0 + 1.5


def test_gpus_that_suit_no_job_are_left_alone() -> None:
    picky = dataclasses.replace(ALONE, model="A100")
    machine = [known_gpu(0), known_gpu(1, model="NVIDIA A100-SXM4-80GB")]
    found = figures([recorded(1, requirement=picky), recorded(2, requirement=picky)], machine)
    assert found.p90_s == HOUR_S
    assert found.jobs == 2
    assert timedelta(seconds=found.p90_s or 0) == HOUR
