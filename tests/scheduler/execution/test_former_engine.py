"""A host whose setting `engine` was changed while it had jobs in Slurm."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.gpus.rows import snapshot as snapshots
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.dispatch.steps.engine_leaders import FormerEngine
from scheduler.dispatch.steps.engine_tasks import EngineStep
from scheduler.facts.plans import PlanPolicy
from scheduler.models import EngineStatus, EngineTask, Job
from tests import jobs_made
from tests.builders import NOW, snapshot

pytestmark = pytest.mark.django_db


class FakeStep:
    """Counts steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.is_closed = False

    def step(self, now: datetime) -> int:
        self.steps += 1
        return 1

    def close(self) -> None:
        self.is_closed = True


def hand_over(job: Job, host: str = "gpubox") -> EngineTask:
    for name in {"gpubox", host}:
        EngineStatus.objects.get_or_create(host=name, defaults={"engine": "slurm", "since_at": NOW})
    return EngineTask.objects.create(
        job=job, host=host, engine="slurm", number=1, nonce="n", ref="71", created_at=NOW
    )


def test_its_jobs_in_slurm_are_followed_until_none_is_left(alice: User) -> None:
    task, made = hand_over(jobs_made.waiting(alice)), FakeStep()
    former = FormerEngine(transaction.atomic, "gpubox", lambda: cast(EngineStep, made))

    assert [former.step(NOW) for _ in range(2)] == [1, 1]
    EngineTask.objects.filter(pk=task.pk).update(closed_at=NOW)
    assert former.step(NOW) == 0

    assert (made.steps, made.is_closed) == (2, True)


def test_slurm_is_shown_until_no_job_is_left_and_that_of_other_hosts_stays(alice: User) -> None:
    hand_over(jobs_made.waiting(alice), host="login1")
    former = FormerEngine(transaction.atomic, "gpubox", cast(Any, FakeStep))

    former.step(NOW)

    assert list(EngineStatus.objects.values_list("host", flat=True)) == ["login1"]


@pytest.mark.parametrize("host", ["gpubox", "login1"])
def test_a_job_that_slurm_has_or_may_have_is_not_started_here(alice: User, host: str) -> None:
    task = hand_over(jobs_made.waiting(alice), host)
    snapshots.record(snapshot(1, at=NOW))
    dispatcher = Dispatcher(transaction.atomic, "gpubox", PlanPolicy())

    assert dispatcher.step(NOW) == []
    EngineTask.objects.filter(pk=task.pk).update(closed_at=NOW)
    placed = dispatcher.step(NOW + timedelta(seconds=1))
    assert [attempt.job_id for attempt in placed] == [task.job_id]
