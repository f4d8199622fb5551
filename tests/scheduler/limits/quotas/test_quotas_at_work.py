from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.gpus.rows import snapshot as monitor_store
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.facts.jobs import AttemptEnding, NewJob, Outcome, Requirement
from scheduler.facts.plans import PlanPolicy
from scheduler.fair_share import rows as fair_share
from scheduler.jobs.rows import changes as job_queue
from scheduler.jobs.rows import transitions
from scheduler.limits.quotas.step import Charging
from scheduler.models import Attempt, Job, Quota
from tests.builders import GIB, NOW, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
MIDNIGHT = NOW.replace(hour=0) + 24 * HOUR


class Lab:
    """A machine of four GPUs, its dispatcher and its charges, at made-up times."""

    def __init__(self) -> None:
        self._dispatcher = Dispatcher(transaction.atomic, "gpubox", PlanPolicy())
        self._seq = 0

    def look(self, now: datetime, *processes: Any) -> None:
        """Do the work of the sampler and the controller."""
        self._seq += 1
        shot = snapshot(4, processes, seq=self._seq, at=now)
        monitor_store.record(shot)
        Charging("gpubox", "UTC", fair_share.owed_seconds).judge(shot, now)

    def serve(self, now: datetime, *processes: Any) -> list[int]:
        self.look(now, *processes)
        return [attempt.job_id for attempt in self._dispatcher.step(now)]


def job(owner: User, at: datetime = NOW, priority: int = 3, **changes: Any) -> Job:
    request = Requirement(gpus=1, exclusive=True)
    new = NewJob(command="true", requirement=request, priority=priority, **changes)
    return job_queue.submit(new, owner, at)


def why(waiting: Job) -> list[str]:
    waiting.refresh_from_db()
    return [blocker["code"] for blocker in waiting.blockers]


def end(of: Job, at: datetime) -> None:
    how = AttemptEnding(outcome=Outcome.SUCCEEDED, ended_at=at, exit_code=0)
    assert transitions.record_end(of.attempts.get(ended_at=None), how, at)
    monitor_store.close_claims(str(of.pk), at)


def test_what_does_not_fit_into_the_day_waits_for_the_next(alice: User) -> None:
    Quota.objects.create(user=alice, gpu_minutes=100)
    lab = Lab()
    lab.look(NOW - 5 * SECOND)
    first, second = job(alice, time_limit=HOUR), job(alice, time_limit=HOUR)

    assert lab.serve(NOW) == [first.pk]
    assert why(second) == ["BudgetDay"]
    end(first, NOW + HOUR)
    assert lab.serve(NOW + HOUR) == []
    assert lab.serve(MIDNIGHT - 2 * SECOND) == []
    assert lab.serve(MIDNIGHT + 3 * SECOND) == [second.pk]


def test_a_job_that_ends_early_gives_back_what_it_might_have_taken(alice: User) -> None:
    Quota.objects.create(user=alice, gpu_minutes=100)
    lab = Lab()
    lab.look(NOW - 5 * SECOND)
    first, second = job(alice, time_limit=HOUR), job(alice, time_limit=HOUR)
    assert lab.serve(NOW) == [first.pk]
    end(first, NOW + HOUR / 2)

    assert lab.serve(NOW + HOUR / 2) == [second.pk]


def test_work_beside_the_queue_uses_the_days_budget_up(alice: User) -> None:
    Quota.objects.create(user=alice, gpu_minutes=1)
    lab = Lab()
    beside = process(memory_bytes=80 * GIB)
    waiting = job(alice, time_limit=30 * SECOND)
    for second in range(-70, 0, 10):
        lab.look(NOW + second * SECOND, beside)

    assert lab.serve(NOW, beside) == []
    assert why(waiting) == ["BudgetDay"]


def test_a_share_leaves_room_for_who_waits_too_and_for_what_one_sits_and_waits_for(
    alice: User, bob: User
) -> None:
    Quota.objects.create(user=alice, share_pct=75)
    lab = Lab()
    lab.look(NOW - 5 * SECOND)
    mine = [job(alice) for _ in range(4)]
    theirs = [job(bob) for _ in range(3)]

    placed = lab.serve(NOW)
    assert len(set(placed) & {j.pk for j in theirs}) == 1
    (left,) = [j for j in mine if j.pk not in placed]
    assert why(left)[0] == "ShareExceeded"


def test_a_share_leaves_no_gpu_idle_after_the_other_users_jobs(alice: User, bob: User) -> None:
    Quota.objects.create(user=alice, share_pct=25)
    Quota.objects.create(user=bob, share_pct=75)
    lab = Lab()
    lab.look(NOW - 5 * SECOND)
    theirs = [job(bob) for _ in range(3)]
    mine = [job(alice) for _ in range(9)]
    lab.serve(NOW)
    for ended in theirs:
        end(ended, NOW + SECOND)

    assert len(lab.serve(NOW + 3 * SECOND)) == 3
    assert sum(bool(j.attempts.filter(ended_at=None)) for j in mine) == 4


def test_what_a_user_got_too_little_of_is_paid_back(alice: User, bob: User) -> None:
    """Four GPUs by 5:3: the fractions alternate, as the ledger counts who had too few."""
    Quota.objects.create(user=alice, share_pct=62.5, reserved_pct=0)
    Quota.objects.create(user=bob, share_pct=37.5, reserved_pct=0)
    lab = Lab()
    lab.look(NOW - 5 * SECOND)
    for _ in range(60):
        job(alice)
        job(bob)
    held = {"alice": 0, "bob": 0}
    for second in range(0, 120, 5):
        for attempt in Attempt.objects.filter(ended_at=None):
            end(attempt.job, NOW + second * SECOND)
        lab.serve(NOW + second * SECOND)
        for attempt in Attempt.objects.filter(ended_at=None).select_related("job__owner"):
            held[attempt.job.owner.username] += 1

    assert sum(held.values()) == 4 * 24
    assert abs(held["alice"] - 60) <= 2
