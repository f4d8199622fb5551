from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.facts.gpus import GpuState
from monitor.journal.rows import events
from monitor.models import Incident
from scheduler.dispatch.steps.controller import IdleResources
from scheduler.models import Job
from scheduler.submission.idle_work.policy import IdlePolicy, WaitingJob, beside, long_idle
from tests import jobs_made
from tests.builders import NOW, gpu, gpu_uuid, snapshot
from tests.monitor.alerts_made import incident, later

POLICY = IdlePolicy()
OVER_SHARE = {"code": "ShareExceeded", "text": "alice is at her share", "tier": 3}


def idle(index: int = 0, minutes: float = 0, state: GpuState = GpuState.IDLE) -> Any:
    return gpu(index, state=state, state_since=later(minutes))


def test_a_gpu_counts_as_idle_once_it_was_so_for_long_enough() -> None:
    gpus = [idle(0), idle(1, minutes=1), idle(2, state=GpuState.EXTERNAL), gpu(3)]

    assert [g.index for g, _ in long_idle(gpus, later(10))] == [0]


def test_it_is_beside_those_who_waited_as_long_and_could_have_it() -> None:
    waiting = [
        WaitingJob(job_id=1, since=later(1)),
        WaitingJob(job_id=2, since=later(0), gpu_uuid=gpu_uuid(1)),
        WaitingJob(job_id=3, since=later(-5)),
    ]
    (blocker,) = beside(long_idle([idle()], later(10)), waiting, later(10))

    assert [w.job_id for w in blocker.waiting] == [3]


def judge(minute: float, *gpus: Any) -> None:
    at: datetime = later(minute)
    IdleResources("gpubox").judge(snapshot(list(gpus) or [idle()], at=at), at)


def texts() -> list[str]:
    return [event.text for event in reversed(events.recent()) if event.kind.startswith("IDLE")]


def waits(owner: User, **blocker: Any) -> Job:
    job = jobs_made.waiting(owner)
    Job.objects.filter(pk=job.pk).update(blockers=[OVER_SHARE | blocker])
    return job


@pytest.mark.django_db
def test_an_idle_gpu_beside_a_waiting_job_is_told_once_for_each_time(alice: User) -> None:
    job = waits(alice)
    for minute in (9, 10, 11, 30):
        judge(minute)
    assert texts() == [
        f"GPU 0 has been idle for 10 min while job {job.pk} waits (alice is at her share)"
    ]

    judge(60, idle(0, minutes=50))
    assert len(texts()) == 2


@pytest.mark.django_db
def test_jobs_that_wait_for_themselves_do_not_count(alice: User) -> None:
    waits(alice, tier=1)
    waits(alice, tier=2)
    jobs_made.waiting(alice)

    judge(60)

    assert texts() == []


@pytest.mark.django_db
def test_memory_that_is_held_idle_is_told_once() -> None:
    incident(rule="idle_held", text="alice holds 40 GiB idle")
    for minute in (0, 1, 2):
        judge(minute)
    Incident.objects.update(opened_at=NOW - timedelta(hours=1))
    judge(3)

    assert texts() == ["alice holds 40 GiB idle"]
    assert events.recent(1)[0].owner == "alice"


@pytest.mark.django_db
def test_a_job_with_unreadable_blockers_keeps_no_idle_gpu_from_being_reported(alice: User) -> None:
    broken, job = jobs_made.waiting(alice), waits(alice)
    Job.objects.filter(pk=broken.pk).update(blockers=["odd"])
    judge(10)
    assert texts() == [
        f"GPU 0 has been idle for 10 min while job {job.pk} waits (alice is at her share)"
    ]


def unused(minutes: float, **changes: Any) -> Any:
    """A GPU below 5 % since so many minutes after the begin."""
    values = {"utilization_pct": 2.0, "idle_since": later(minutes), "state": GpuState.IDLE}
    return gpu(0, **(values | changes))


@pytest.mark.django_db
def test_an_idle_gpu_is_reported_once_for_each_idle_time_though_no_job_waits() -> None:
    for minute in (4, 5, 6, 30):
        judge(minute, unused(0))
    assert texts() == ["GPU 0 has been idle for 5 min (utilisation 2 %)"]

    judge(40, unused(36, idle_since=None, utilization_pct=50.0))
    judge(46, unused(41))
    assert len(texts()) == 2


@pytest.mark.django_db
def test_an_idle_gpu_whose_memory_is_held_is_told_apart() -> None:
    judge(5, unused(0, state=GpuState.EXTERNAL, memory_used_bytes=20 * 1024**3))

    assert texts() == [
        "GPU 0, on which other processes hold 20 GiB, has been idle for 5 min (utilisation 2 %)"
    ]


@pytest.mark.django_db
def test_a_gpu_of_unknown_use_is_not_idle() -> None:
    judge(60, unused(0, idle_since=None, utilization_pct=None))

    assert texts() == []


@pytest.mark.django_db
def test_an_idle_gpu_whose_newest_use_is_unknown_is_reported_without_a_figure() -> None:
    judge(5, unused(0, utilization_pct=None))

    assert texts() == ["GPU 0 has been idle for 5 min"]


@pytest.mark.django_db
def test_held_memory_of_unknown_size_is_not_reported_as_none() -> None:
    judge(5, unused(0, state=GpuState.EXTERNAL, memory_used_bytes=None))

    assert texts()[0].startswith("GPU 0, on which other processes hold an unknown amount")


@pytest.mark.django_db
def test_idle_cpus_are_reported_at_most_once_an_hour() -> None:
    from tests.builders import host

    for minute, since in ((6, 0), (20, 12), (80, 70)):
        at = later(minute)
        reading = host(cpu_pct=1.0, cpu_idle_since=later(since))
        IdleResources("gpubox").judge(snapshot([], at=at, host=reading), at)

    assert [text[:33] for text in texts()] == ["The CPUs of gpubox have been idle"] * 2
