"""Idle work leaves the GPUs that a batch takes in exclusive mode, on a simulated clock."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User

from scheduler.facts.jobs import YieldOptions
from scheduler.models import Attempt, Batch, Job, YieldRequest
from tests.builders import gpu_uuid
from tests.scheduler.submission.batches.exclusive_box import Box

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
GRACE_S = 60
STEPS = ["announced", "draining", "unloading", "working", "reloading", "ended"]


def attempts_on_gpus() -> list[Attempt]:
    """Those of idle work."""
    return list(Attempt.objects.exclude(job__idle_template="").order_by("pk"))


def gives_back_at(box: Box, batch: Batch) -> datetime:
    """When its items have ended: no model returns to its GPUs."""
    times = dict(box.run(batch).log)
    return datetime.fromisoformat(times["reloading"])


def test_idle_work_is_asked_to_leave_when_a_batch_is_announced(root: User, alice: User) -> None:
    box = Box(gpus=2)
    idle = box.idle_work(alice, count=2, grace=f"{GRACE_S}s")
    batch = box.batch(root, items=4)

    announced = box.until(batch, "announced", within_s=60)

    requests = YieldRequest.objects.order_by("attempt__job")
    assert [request.attempt.job for request in requests] == idle
    assert {request.code for request in requests} == {"BatchExclusive"}
    assert {request.asked_at for request in requests} == {announced.since}
    until = announced.since + timedelta(seconds=GRACE_S)
    assert {request.deadline for request in requests} == {until}
    assert requests[0].text == f"The exclusive mode of batch {batch.pk} whisper needs its GPU."


@pytest.mark.parametrize("saves_s", [20.0, None])
@pytest.mark.parametrize("work_s", [5.0, 45.0])
def test_a_batch_gets_the_gpus_of_idle_work_within_its_grace(
    root: User, alice: User, saves_s: float | None, work_s: float
) -> None:
    box = Box(gpus=3)
    box.saves_s, box.work_s = saves_s, work_s
    box.idle_work(alice, count=2, grace=f"{GRACE_S}s")
    batch = box.batch(root, items=60)
    since = box.until(batch, "announced", within_s=60).since

    box.until(batch, "working", within_s=120)
    while box.now < since + timedelta(seconds=GRACE_S + box.tick_s):
        box.tick()

    run = box.run(batch)
    assert (run.step, len(run.gpu_uuids)) == ("working", 3)
    ended = [attempt.ended_at for attempt in attempts_on_gpus()]
    assert None not in ended
    assert len(ended) == 2
    placed = Attempt.objects.filter(ended_at=None, job__exclusive_batch=batch.pk)
    assert {uuid for attempt in placed for uuid in attempt.gpu_uuids} == set(run.gpu_uuids)


def test_no_idle_work_starts_on_the_gpus_of_a_batch_before_it_ends(root: User, alice: User) -> None:
    box = Box(gpus=2)
    box.saves_s = 20
    jobs = box.idle_work(alice, count=2, grace=f"{GRACE_S}s")
    # Long ago for a job that has found no GPU.
    box.tick(30)
    batch = box.batch(root, items=8)
    began = box.until(batch, "announced", within_s=60).since

    box.until(batch, "ended", within_s=900)
    box.tick(6)

    until = gives_back_at(box, batch)
    starts = [attempt.placed_at for attempt in attempts_on_gpus()]
    assert not [at for at in starts if began <= at < until]
    # Its saved work goes on afterwards.
    resumed = Attempt.objects.filter(ended_at=None).exclude(job__idle_template="")
    assert [attempt.job for attempt in resumed.order_by("job")] == jobs
    batch.refresh_from_db()
    assert (batch.completed, batch.state) == (8, "complete")


@pytest.mark.slow
def test_idle_work_leaves_although_the_items_would_have_room_beside_it(
    root: User, alice: User
) -> None:
    box = Box(gpus=1)
    box.idle_work(alice, grace=f"{GRACE_S}s", gpu_memory="10GiB")
    batch = box.batch(root, items=60, exclusive=False, gpu_memory="10GiB")
    since = box.until(batch, "announced", within_s=60).since

    box.until(batch, "ended", within_s=900)

    (left,) = attempts_on_gpus()[:1]
    assert left.ended_at is not None
    assert left.ended_at <= since + timedelta(seconds=GRACE_S)


@pytest.mark.parametrize("saves_s", [20.0, None])
def test_processes_that_die_at_each_step_ask_idle_work_all_the_same(
    root: User, alice: User, saves_s: float | None
) -> None:
    box = Box(gpus=2)
    box.saves_s = saves_s
    box.idle_work(alice, count=2, grace=f"{GRACE_S}s")
    batch = box.batch(root, items=3)
    box.dies_in = set(STEPS)

    run = box.until(batch, "ended", within_s=900)

    batch.refresh_from_db()
    assert box.deaths == len(STEPS)
    assert [name for name, _ in run.log] == STEPS
    assert (batch.completed, batch.state) == (3, "complete")
    requests = YieldRequest.objects.filter(attempt__job__idle_template="train")
    assert requests.count() == 2
    assert not requests.exclude(withdrawn_at=None).exists()


def test_a_background_job_of_a_user_keeps_its_gpu(root: User, alice: User) -> None:
    box = Box(gpus=2)
    box.work_s = 600
    job = box.job(alice, priority=1, yield_options=YieldOptions(preemptible=True))
    box.tick(2)
    batch = box.batch(root, items=4)

    run = box.until(batch, "working", within_s=120)
    box.tick(3)

    job.refresh_from_db()
    assert job.state == "running"
    assert not YieldRequest.objects.filter(attempt__job=job).exists()
    assert set(run.gpu_uuids) == {gpu_uuid(0), gpu_uuid(1)} - set(job.attempts.get().gpu_uuids)


def test_idle_work_that_waits_for_a_gpu_of_the_batch_does_not_start(
    root: User, alice: User
) -> None:
    box = Box(gpus=1)
    batch = box.batch(root, items=3)
    box.until(batch, "announced", within_s=60)
    Job.objects.filter(pk=box.job(alice, priority=1).pk).update(
        idle_template="train", gpu_uuid=gpu_uuid(0)
    )

    box.until(batch, "ended", within_s=900)

    until = gives_back_at(box, batch)
    assert not [attempt for attempt in attempts_on_gpus() if attempt.placed_at < until]


def test_a_batch_takes_free_gpus_before_those_with_idle_work_or_models(
    root: User, alice: User
) -> None:
    box = Box(gpus=3)
    box.model()
    box.idle_work(alice)
    used = {uuid for attempt in Attempt.objects.all() for uuid in attempt.gpu_uuids}
    free = {gpu_uuid(index) for index in range(3)} - used

    first = box.until(box.batch(root, items=1), "announced", within_s=60)

    assert set(first.gpu_uuids) == free


def test_idle_work_leaves_for_a_row_of_short_jobs_that_find_other_gpus(
    root: User, alice: User
) -> None:
    box = Box(gpus=2)
    box.work_s = 5
    (idle,) = box.idle_work(alice, grace=f"{GRACE_S}s")
    batch = box.batch(root, items=60, mode="shared")
    box.tick()
    asked = YieldRequest.objects.get(attempt__job=idle).asked_at

    while box.now < asked + timedelta(seconds=GRACE_S + 2 * box.tick_s):
        box.tick()

    batch.refresh_from_db()
    assert batch.state == "running"
    assert Attempt.objects.get(job=idle).ended_at is not None
