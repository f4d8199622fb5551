from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext

from scheduler.facts.jobs import Dependency, Requirement
from scheduler.fair_share.rows import FairShareAccounts, accounts_by_user, capacity, waiting_gpus
from scheduler.models import DailyGpuUsage, HostCapacity, Job, Quota, UsageShare
from tests import jobs_made
from tests.builders import GIB, NOW, gpu_uuid

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def machine() -> HostCapacity:
    uuids = [gpu_uuid(i) for i in range(4)]
    return HostCapacity.objects.create(host="gpubox", at=NOW, gpu_uuids=uuids, gpu_bytes=80 * GIB)


def members(name: str, *people: User, **limits: Any) -> Quota:
    group = Group.objects.create(name=name)
    group.user_set.add(*people)
    return Quota.objects.create(group=group, **limits)


def test_a_persons_own_quota_beats_their_groups_and_these_the_default(
    alice: User, bob: User
) -> None:
    Quota.objects.create(gpus=1)
    carol = User.objects.create_user("carol")
    members("lab", alice, bob, gpus=2)
    Quota.objects.create(user=alice, gpus=3)
    accounts = accounts_by_user(NOW, {"alice", "bob", "carol"})

    assert [accounts[name].quota.gpus for name in ("alice", "bob", carol.username)] == [3, 2, 1]


def test_of_several_groups_each_figure_is_the_most_generous(alice: User) -> None:
    members("lab", alice, gpus=2, jobs=None, priority=4, reserved_pct=30)
    members("guests", alice, gpus=1, jobs=5, priority=3, reserved_pct=10)
    quota = accounts_by_user(NOW, {"alice"})["alice"].quota

    assert (quota.gpus, quota.jobs, quota.priority, quota.reserved_pct) == (2, None, 4, 10)


def test_there_is_one_quota_for_each(alice: User) -> None:
    Quota.objects.create(gpus=1)
    with pytest.raises(IntegrityError):
        Quota.objects.create(gpus=2)


def test_nobody_may_have_a_quota_with_a_group(alice: User) -> None:
    with pytest.raises(IntegrityError):
        Quota.objects.create(user=alice, group=Group.objects.create(name="lab"))


def test_what_a_persons_jobs_hold_is_counted(alice: User, machine: HostCapacity) -> None:
    jobs_made.running(alice, (0, 1), requirement=Requirement(gpus=2))
    shared = Requirement(memory_bytes=20 * GIB)
    jobs_made.placed(alice, (2,), requirement=shared)
    jobs_made.waiting(alice)
    accounts = accounts_by_user(NOW)["alice"]

    assert (accounts.gpus, accounts.jobs, accounts.memory_bytes) == (3, 2, 180 * GIB)
    assert accounts.charge == 2.25


def test_processes_outside_count_beside_the_jobs(alice: User, machine: HostCapacity) -> None:
    jobs_made.waiting(alice)
    UsageShare.objects.create(host="gpubox", owner="alice", usage=0.2, charge=1.5, outside=0.5)
    accounts = accounts_by_user(NOW)["alice"]

    assert (accounts.charge, accounts.usage) == (0.5, 0.2)


def test_targets_are_shared_among_those_who_want_something(
    alice: User, bob: User, machine: HostCapacity
) -> None:
    User.objects.create_user("carol")
    for user in (alice, alice, alice, bob):
        jobs_made.waiting(user)
    jobs_made.running(bob)
    UsageShare.objects.create(host="gpubox", owner="bob", usage=0.5)
    accounts = accounts_by_user(NOW)

    assert {name: s.weight for name, s in accounts.items()} == {"alice": 0.5, "bob": 0.5}
    assert accounts["alice"].target == pytest.approx(2 / 3)


def test_what_a_user_cannot_use_of_the_target_goes_to_the_others(
    alice: User, bob: User, machine: HostCapacity
) -> None:
    Quota.objects.create(user=alice, share_pct=90)
    jobs_made.waiting(alice)
    for _ in range(5):
        jobs_made.waiting(bob)
    held = jobs_made.waiting(alice)
    held.held = "alice holds it"
    held.save()

    accounts = accounts_by_user(NOW)

    gpus = len(machine.gpu_uuids)
    assert accounts["alice"].target == pytest.approx(1 / gpus)
    assert accounts["bob"].target == pytest.approx(1 - 1 / gpus)


@pytest.mark.parametrize("why", ["held", "begin", "retry", "dependency"])
def test_a_job_that_may_not_start_yet_wants_no_gpu(
    why: str, alice: User, bob: User, machine: HostCapacity
) -> None:
    later = NOW + timedelta(hours=1)
    changes: dict[str, dict[str, Any]] = {
        "begin": {"begin_at": later},
        "dependency": {"after": (Dependency(on=jobs_made.waiting(bob).pk),)},
    }
    job = jobs_made.waiting(alice, **changes.get(why, {}))
    states = {"held": {"held": "user"}, "retry": {"retry_at": later}}
    Job.objects.filter(pk=job.pk).update(priority=3, **states.get(why, {}))

    assert waiting_gpus(capacity(), NOW)["alice"] == 0


def test_a_budget_counts_what_was_spent_today_on_all_hosts_and_what_runs(
    alice: User, machine: HostCapacity
) -> None:
    Quota.objects.create(user=alice, gpu_minutes=600)
    midnight = NOW.replace(hour=0)
    DailyGpuUsage.objects.create(
        host="gpubox", owner="alice", from_at=midnight, job_s=600, outside_s=60
    )
    DailyGpuUsage.objects.create(host="other", owner="alice", from_at=midnight, job_s=60)
    DailyGpuUsage.objects.create(
        host="gpubox", owner="alice", from_at=midnight - 24 * HOUR, job_s=6000
    )
    jobs_made.running(alice, time_limit=HOUR)
    budget = accounts_by_user(NOW + timedelta(seconds=2))["alice"].budget

    assert budget is not None
    assert (budget.spent, budget.committed) == (12, 60)
    assert budget.resets_at == midnight + 24 * HOUR


def test_what_is_not_debited_yet_counts_as_what_the_job_may_still_take(
    alice: User, machine: HostCapacity
) -> None:
    Quota.objects.create(user=alice, gpu_minutes=600)
    jobs_made.running(alice, time_limit=HOUR)
    debited = NOW + timedelta(minutes=10, seconds=1)
    HostCapacity.objects.update(at=debited)
    day = NOW.replace(hour=0)
    DailyGpuUsage.objects.create(host="gpubox", owner="alice", from_at=day, job_s=600)

    sums = set()
    for later in (0, 1, 7, 60):
        budget = accounts_by_user(debited + timedelta(seconds=later))["alice"].budget
        assert budget is not None
        sums.add(budget.spent + budget.committed)
    assert len(sums) == 1


def test_hosts_count_by_their_gpus(alice: User, machine: HostCapacity) -> None:
    HostCapacity.objects.create(host="small", at=NOW, gpu_uuids=["GPU-x"], gpu_bytes=40 * GIB)
    UsageShare.objects.create(host="gpubox", owner="alice", usage=0.5)
    UsageShare.objects.create(host="small", owner="alice", usage=1.0)
    accounts = accounts_by_user(NOW, {"alice"})["alice"]

    assert accounts.usage == pytest.approx(0.6)
    assert (len(accounts.capacity.gpu_uuids), accounts.capacity.gpu_bytes) == (5, 72 * GIB)


def test_a_host_that_fell_silent_lends_no_gpus_and_nobody_is_seen_on_it(
    alice: User, machine: HostCapacity
) -> None:
    gone = NOW - timedelta(minutes=3)
    HostCapacity.objects.create(host="gone", at=gone, gpu_uuids=["GPU-x"], gpu_bytes=40 * GIB)
    UsageShare.objects.create(host="gone", owner="alice", usage=1.0, outside=1.0)
    accounts = accounts_by_user(NOW, {"alice"})["alice"]

    assert (accounts.charge, accounts.usage) == (0.0, None)
    assert (len(accounts.capacity.gpu_uuids), accounts.capacity.gpu_bytes) == (4, 80 * GIB)


def test_while_nobody_looks_the_gpus_are_there_but_what_was_seen_outside_is_not(
    alice: User, machine: HostCapacity
) -> None:
    UsageShare.objects.create(host="gpubox", owner="alice", usage=0.5, outside=1.0)
    accounts = accounts_by_user(NOW + timedelta(minutes=3), {"alice"})["alice"]

    assert (accounts.charge, accounts.usage, len(accounts.capacity.gpu_uuids)) == (0.0, 0.5, 4)


def test_asked_again_and_again_it_costs_one_query(alice: User, machine: HostCapacity) -> None:
    jobs_made.running(alice)
    standings_cache = FairShareAccounts()
    standings_cache.at(NOW, {"alice"})
    with CaptureQueriesContext(
        connection,
    ) as queries:
        standings_cache.at(NOW + timedelta(seconds=1), {"alice"})

    assert len(queries) == 1


def test_a_changed_quota_counts_within_seconds(alice: User) -> None:
    standings_cache = FairShareAccounts()
    assert standings_cache.at(NOW, {"alice"})["alice"].quota.gpus is None
    Quota.objects.create(user=alice, gpus=2)

    later = standings_cache.at(NOW + timedelta(seconds=3), {"alice"})
    assert later["alice"].quota.gpus == 2
