from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.models import Event
from scheduler.dispatch.steps import yields as yield_requests
from scheduler.execution.steps import gpu_closures
from scheduler.facts.jobs import YieldOptions
from scheduler.facts.plans import Yield
from scheduler.jobs.rows import changes as job_changes
from scheduler.models import GpuHold, Job, YieldRequest
from tests import jobs_made
from tests.builders import NOW, gpu_uuid

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
LATER = NOW + timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def _ask(job: Job, **changes: Any) -> bool:
    yield_request = {
        "job_id": job.pk,
        "code": "OwnerPresent",
        "text": "The owner of GPU 0 is there.",
    }
    return yield_requests.ask(Yield(**(yield_request | changes)), LATER)


def test_it_writes_down_why_and_until_when(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=YieldOptions(grace=2 * MINUTE))

    assert _ask(job, counts=False)
    request = YieldRequest.objects.get()
    assert (request.kind, request.code, request.counts) == ("eviction", "OwnerPresent", False)
    assert (request.asked_at, request.deadline) == (LATER, LATER + 2 * MINUTE)
    event = Event.objects.get(kind="JOB_YIELDING")
    assert event.text == (
        f"Job {job.pk} (python train.py) is asked to leave its GPU: The owner of GPU 0 is there."
    )
    job.refresh_from_db()
    assert job.state == "running"


def test_it_asks_once(alice: User) -> None:
    job = jobs_made.running(alice)

    assert _ask(job)
    assert not _ask(job)
    assert Event.objects.filter(kind="JOB_YIELDING").count() == 1


def test_who_is_more_pressing_is_heard(alice: User) -> None:
    job, other = jobs_made.running(alice), jobs_made.waiting(alice)
    assert _ask(job, for_job=other.pk, deadline=LATER + 5 * MINUTE)

    assert _ask(job, counts=False, deadline=LATER + MINUTE)
    request = YieldRequest.objects.get()
    assert (request.kind, request.counts) == ("eviction", False)
    assert request.deadline == LATER + MINUTE


def test_who_waits_or_is_being_stopped_is_not_asked(alice: User) -> None:
    stopping = jobs_made.running(alice)
    job_changes.request_cancel(stopping.pk, "alice", LATER)

    assert not _ask(jobs_made.waiting(alice))
    assert not _ask(stopping)
    assert not _ask(jobs_made.finished(alice))


def test_the_freed_gpus_are_kept_until_somewhat_after_the_deadline(alice: User) -> None:
    job, other = jobs_made.running(alice), jobs_made.waiting(alice, priority=5)
    _ask(job, for_job=other.pk, gpu_uuids=(gpu_uuid(0),), deadline=LATER + MINUTE)

    assert gpu_closures.gpu_holds("gpubox", LATER) == {gpu_uuid(0): other.pk}
    assert gpu_closures.gpu_holds("gpubox", LATER + 2 * MINUTE - MINUTE / 60) == {
        gpu_uuid(0): other.pk
    }
    assert gpu_closures.gpu_holds("gpubox", LATER + 2 * MINUTE) == {}
    assert gpu_closures.gpu_holds("elsewhere", LATER) == {}


def _withdraw(at: datetime = LATER) -> list[int]:
    idle = yield_requests.withdrawable("gpubox", at)
    for yield_request in idle:
        yield_requests.withdraw(yield_request, at)
    return [yield_request.attempt.job_id for yield_request in idle]


def _asked_for(alice: User) -> tuple[Job, Job]:
    """A running job, and the one that it is asked to make room for within two minutes."""
    job, other = jobs_made.running(alice), jobs_made.waiting(alice, priority=5)
    _ask(job, for_job=other.pk, gpu_uuids=(gpu_uuid(0),), deadline=LATER + 2 * MINUTE)
    return job, other


@pytest.mark.parametrize("what", ["cancelled", "held", "placed elsewhere"])
def test_who_was_asked_for_nobody_may_stay(alice: User, what: str) -> None:
    job, other = _asked_for(alice)
    assert _withdraw() == []
    if what == "cancelled":
        job_changes.request_cancel(other.pk, "alice", LATER)
    elif what == "held":
        job_changes.hold_job(other.pk, "alice", LATER)
    else:
        jobs_made.place_again(other, on=(1,), at=LATER)

    assert gpu_closures.gpu_holds("gpubox", LATER) == {}
    assert _withdraw() == [job.pk]
    assert YieldRequest.objects.get().withdrawn_at == LATER
    assert job.attempts.get().asked_to_leave is None
    assert not GpuHold.objects.exists()
    text = f"Job {job.pk} (python train.py) may stay: Job {other.pk} no longer needs its GPU."
    assert Event.objects.get(kind="JOB_MAY_STAY").text == text
    assert _withdraw() == []


def test_who_is_being_stopped_already_leaves(alice: User) -> None:
    _, other = _asked_for(alice)
    job_changes.request_cancel(other.pk, "alice", LATER)

    assert _withdraw(LATER + 1.9 * MINUTE) == []


def test_a_gpus_owner_is_not_forgotten_with_the_job_that_came_first(alice: User) -> None:
    job, other = _asked_for(alice)
    assert _ask(job, counts=False, deadline=LATER + MINUTE)
    job_changes.request_cancel(other.pk, "alice", LATER)

    assert _withdraw() == []


def test_who_may_stay_may_be_asked_again(alice: User) -> None:
    job, other = _asked_for(alice)
    job_changes.request_cancel(other.pk, "alice", LATER)
    _withdraw()
    another = jobs_made.waiting(alice, priority=5)

    assert _ask(job, for_job=another.pk, deadline=LATER + 5 * MINUTE)
    asked_to_leave = job.attempts.get().asked_to_leave
    assert asked_to_leave is not None
    assert (asked_to_leave.for_job_id, asked_to_leave.deadline) == (another.pk, LATER + 5 * MINUTE)


def test_nothing_is_kept_for_who_waits_no_more(alice: User) -> None:
    job, other = jobs_made.running(alice), jobs_made.waiting(alice, priority=5)
    _ask(job, for_job=other.pk, gpu_uuids=(gpu_uuid(0),))
    job_changes.request_cancel(other.pk, "alice", LATER)

    assert GpuHold.objects.exists()
    assert gpu_closures.gpu_holds("gpubox", LATER) == {}


def test_a_request_that_is_repeated_at_once_keeps_its_deadline(alice: User) -> None:
    job, other = _asked_for(alice)
    Job.objects.filter(pk=job.pk).update(grace_s=120)
    job_changes.request_cancel(other.pk, "alice", LATER)
    soon = LATER + MINUTE
    assert _withdraw(soon) == [job.pk]
    third = jobs_made.waiting(alice, priority=5)

    again = Yield(job_id=job.pk, code="Preempted", text="Job 3 needs its GPU.", for_job=third.pk)
    assert yield_requests.ask(again, soon + timedelta(seconds=2))

    request = YieldRequest.objects.get()
    assert (request.asked_at, request.deadline) == (LATER, LATER + 2 * MINUTE)
    assert (request.for_job, request.withdrawn_at) == (third, None)


def test_a_request_that_is_repeated_much_later_has_its_own_grace(alice: User) -> None:
    job, other = _asked_for(alice)
    job_changes.request_cancel(other.pk, "alice", LATER)
    _withdraw(LATER)
    third = jobs_made.waiting(alice, priority=5)
    Job.objects.filter(pk=job.pk).update(grace_s=120)

    again = Yield(job_id=job.pk, code="Preempted", text="Job 3 needs its GPU.", for_job=third.pk)
    assert yield_requests.ask(again, LATER + MINUTE)

    request = YieldRequest.objects.get()
    assert (request.asked_at, request.deadline) == (LATER + MINUTE, LATER + 3 * MINUTE)


def test_a_young_job_has_its_grace_if_the_request_spares_it(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=YieldOptions(grace=2 * MINUTE, requeue=True))
    soon = NOW + MINUTE
    request = Yield(job_id=job.pk, code="BatchExclusive", text="A batch.", spares_young=True)

    assert yield_requests.ask(request, soon)

    assert YieldRequest.objects.get().deadline == soon + 2 * MINUTE
