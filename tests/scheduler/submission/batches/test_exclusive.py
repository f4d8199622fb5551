"""Batches in exclusive mode, on a simulated clock through the real planner."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User

from monitor.models import Event
from scheduler.execution.steps import gpu_closures
from scheduler.facts.scripts import ExclusiveFact, ExclusiveStep
from scheduler.models import (
    Attempt,
    Batch,
    HostCapacity,
    Job,
    ModelInstance,
    ModelService,
    Quota,
    TimeWindow,
)
from scheduler.submission.batches import rows
from scheduler.submission.batches.policy import BatchPolicy, mode_of, next_step
from tests.builders import GIB, NOW, gpu_uuid
from tests.scheduler.submission.batches.exclusive_box import HOST, Box

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
S = ExclusiveStep
ORDER = ["announced", "draining", "unloading", "working", "reloading", "ended"]


def steps(batch: Batch) -> list[str]:
    return [name for name, _ in batch.exclusive_run.log]


@pytest.mark.slow
def test_the_worked_example_takes_37_minutes(root: User) -> None:
    box = Box(gpus=3)
    box.boot_s = 120
    box.model(count=3)
    began = box.now
    batch = box.batch(root, items=125, mode=None)
    box.until(batch, "working")
    # A divisor of the run time of items and of the boot time.
    box.tick_s = 5

    run = box.until(batch, "ended")

    minutes = (box.now - began).total_seconds() / 60
    # Unloading 15 s, 42 rounds of 45 s on three GPUs, and three models loaded in turn, 2 min each.
    whole = 0.25 + 42 * 0.75 + 3 * 2
    assert whole <= minutes <= whole * 1.02
    batch.refresh_from_db()
    assert (batch.gpu_mode, batch.completed, batch.state) == ("exclusive", 125, "complete")
    assert [name for name, _ in run.log] == ORDER
    assert box.ready() == 3
    assert {len(a.gpu_uuids) for a in Attempt.objects.filter(job__exclusive_batch=batch.pk)} == {1}


def test_models_are_loaded_again_one_after_another(root: User) -> None:
    box = Box(gpus=3)
    box.model(count=3)
    batch = box.batch(root, items=6)
    box.until(batch, "working")
    box.most_booting = 0

    box.until(batch, "ended")

    assert (box.ready(), box.most_booting) == (3, 1)


def test_brain_models_keep_their_gpus(root: User) -> None:
    box = Box(gpus=2)
    box.model("brain", role="brain_primary")
    box.model("worker")
    batch = box.batch(root)

    run = box.until(batch, "working")

    brain, worker = (ModelService.objects.get(name=name) for name in ("brain", "worker"))
    assert brain.instances.get().state == "ready"
    assert worker.held_for_batch == batch.pk
    assert run.gpu_uuids == worker.instances.get().gpu_uuids


def test_running_jobs_go_on_and_their_gpu_is_not_taken(root: User, alice: User) -> None:
    box = Box(gpus=2)
    box.work_s = 600
    job = box.job(alice)
    box.tick(2)
    batch = box.batch(root)

    run = box.until(batch, "working")

    job.refresh_from_db()
    held = job.attempts.get().gpu_uuids
    assert job.state == "running"
    assert set(run.gpu_uuids) == {gpu_uuid(0), gpu_uuid(1)} - set(held)


def test_new_prompts_queue_and_running_ones_finish(root: User) -> None:
    box = Box(gpus=1)
    box.model()
    ModelInstance.objects.update(in_flight=1)
    batch = box.batch(root)
    box.until(batch, "draining")

    box.tick(6)

    assert box.run(batch).step == "draining"
    instance = ModelInstance.objects.get()
    assert (instance.state, instance.is_closed) == ("ready", True)
    ModelInstance.objects.update(in_flight=0)
    box.until(batch, "working", within_s=60)


def test_prompts_that_run_for_too_long_do_not_hold_the_batch_up(root: User) -> None:
    box = Box(gpus=1)
    box.model()
    ModelInstance.objects.update(in_flight=1)
    batch = box.batch(root)

    box.until(batch, "draining")
    box.tick_s = 30

    box.until(batch, "working", within_s=900)


def test_a_demand_boots_no_model_while_the_batch_has_its_gpu(root: User) -> None:
    from scheduler.language_models.model_services import rows as model_rows

    box = Box(gpus=1)
    service = box.model()
    batch = box.batch(root)
    box.until(batch, "working")

    model_rows.request_instance(service.pk, box.now)
    box.tick(5)

    assert not service.instances.exclude(state="stopped").exists()


def test_other_jobs_wait_with_a_reason_while_the_batch_has_the_gpus(
    root: User, alice: User
) -> None:
    box = Box(gpus=1)
    batch = box.batch(root)
    box.until(batch, "announced")
    job = box.job(alice, priority=4)

    box.until(batch, "working")
    box.tick(3)

    job.refresh_from_db()
    assert (job.state, job.blockers[0]["code"]) == ("queued", "BatchExclusive")
    assert f"GPU 0 is reserved for batch {batch.pk} (exclusive mode)" in job.blockers[0]["text"]
    box.until(batch, "ended")
    box.tick(2)
    job.refresh_from_db()
    assert job.state == "running"


def test_a_second_batch_waits_for_the_first(root: User) -> None:
    box = Box(gpus=2)
    first, second = box.batch(root, items=4), box.batch(root, items=4)

    box.until(first, "working")

    run = box.run(second)
    assert (run.step, run.waits_for) == ("waiting", f"batch {first.pk}")
    assert not Job.objects.filter(batch_items__batch=second).exists()
    box.until(second, "ended")
    second.refresh_from_db()
    assert second.completed == 4


def test_a_batch_without_a_free_gpu_shares_until_it_can_take_one(root: User, alice: User) -> None:
    box = Box(gpus=1)
    box.work_s = 60
    box.job(alice)
    box.tick(2)
    batch = box.batch(root, items=3)

    box.tick(2)

    assert box.run(batch).step == "waiting"
    assert "idle" in box.run(batch).waits_for
    assert Job.objects.filter(batch_items__batch=batch).exists()
    box.until(batch, "ended")
    batch.refresh_from_db()
    assert batch.completed == 3


@pytest.mark.slow
@pytest.mark.parametrize("step", ORDER[:-1])
def test_an_operator_ends_the_mode_at_each_step(root: User, step: str) -> None:
    box = Box(gpus=2)
    box.model(count=2)
    batch = box.batch(root, items=8)
    box.until(batch, step)

    assert rows.stop(batch, "root", box.now)
    box.until(batch, "ended", within_s=600)
    box.tick(12)

    batch.refresh_from_db()
    assert batch.gpu_mode == "shared"
    assert not ModelInstance.objects.filter(is_closed=True, state="ready").exists()
    assert not ModelService.objects.exclude(held_for_batch=None).exists()
    assert gpu_closures.gpus_of_batches("gpubox") == {}


def test_processes_that_die_at_the_begin_of_each_step_change_nothing_of_the_end(
    root: User,
) -> None:
    box = Box(gpus=1)
    box.model()
    batch = box.batch(root, items=3)
    box.dies_in = set(ORDER)

    run = box.until(batch, "ended")
    box.tick(2)

    batch.refresh_from_db()
    assert box.deaths == len(ORDER)
    assert [name for name, _ in run.log] == ORDER
    assert (batch.completed, batch.state) == (3, "complete")
    assert list(batch.items.values_list("attempt", flat=True)) == [1] * 3
    assert (box.ready(), gpu_closures.gpus_of_batches("gpubox")) == (1, {})
    assert Event.objects.filter(kind="BATCH_EXCLUSIVE").count() == len(ORDER)


@pytest.mark.parametrize("step", ["draining", "working"])
def test_an_end_by_an_operator_survives_the_death_of_the_process(root: User, step: str) -> None:
    box = Box(gpus=1)
    box.model()
    batch = box.batch(root, items=3)
    box.until(batch, step)
    rows.stop(batch, "root", box.now)
    box.dies_in = {"reloading", "ended"}

    box.until(batch, "ended", within_s=600)

    assert box.deaths >= 1
    assert box.run(batch).batch.gpu_mode == "shared"
    assert not ModelService.objects.exclude(held_for_batch=None).exists()
    assert gpu_closures.gpus_of_batches("gpubox") == {}


def test_a_batch_whose_mode_was_ended_goes_on_sharing(root: User) -> None:
    box = Box(gpus=2)
    batch = box.batch(root, items=8)
    box.until(batch, "working")

    rows.stop(batch, "root", box.now)
    box.tick(45)

    batch.refresh_from_db()
    assert (batch.completed, batch.state, batch.gpu_mode) == (8, "complete", "shared")


@pytest.mark.parametrize("step", ["announced", "draining", "unloading", "working"])
def test_a_cancelled_batch_gives_everything_back(root: User, step: str) -> None:
    from scheduler.submission.batches import rows

    box = Box(gpus=1)
    box.model()
    batch = box.batch(root, items=8)
    box.until(batch, step)

    rows.cancel(batch, "root", box.now)
    box.until(batch, "ended", within_s=600)

    box.tick(30)
    assert box.ready() == 1
    assert gpu_closures.gpus_of_batches("gpubox") == {}


def test_each_step_is_an_event(root: User) -> None:
    box = Box(gpus=1)
    batch = box.batch(root, items=2)
    box.until(batch, "ended")

    texts = list(Event.objects.filter(kind="BATCH_EXCLUSIVE").order_by("id").values_list("text"))
    assert len(texts) == len(ORDER)
    assert "takes 1 GPU in exclusive mode" in texts[0][0]


def test_a_quota_bounds_the_gpus_that_a_batch_takes(alice: User) -> None:
    Quota.objects.create(user=alice, gpus=1, exclusive_batches=True)
    box = Box(gpus=3)

    assert len(box.until(box.batch(alice), "working").gpu_uuids) == 1


def reserve(holder: User, begins: datetime, *indices: int) -> None:
    """An hour of these GPUs for the holder."""
    TimeWindow.objects.create(
        user=holder,
        gpu_uuids=[gpu_uuid(index) for index in indices],
        days=[begins.weekday()],
        start=begins.time(),
        end=(begins + timedelta(hours=1)).time(),
        zone="UTC",
        state=TimeWindow.State.APPROVED,
        asked_by=holder.username,
        asked_at=NOW,
    )


def test_a_batch_takes_no_gpu_in_the_time_window_of_another_user(root: User, alice: User) -> None:
    reserve(alice, NOW - timedelta(minutes=10), 0, 2)

    box = Box(gpus=3)

    assert box.until(box.batch(root), "working").gpu_uuids == [gpu_uuid(1)]


@pytest.mark.slow
def test_a_batch_gives_up_a_gpu_when_the_time_window_of_another_user_begins(
    root: User, alice: User
) -> None:
    reserve(alice, NOW + timedelta(minutes=10), 1)
    box = Box(gpus=3)
    batch = box.batch(root, items=300)
    before = set(box.until(batch, "working").gpu_uuids)
    box.tick(140)

    assert box.run(batch).step == "working"
    assert before - set(box.run(batch).gpu_uuids) == {gpu_uuid(1)}


def test_large_batches_are_exclusive_for_those_who_may(root: User, alice: User) -> None:
    box = Box()

    assert box.batch(root, items=50, mode=None).gpu_mode == "exclusive"
    assert box.batch(root, items=49, mode=None).gpu_mode == "shared"
    assert box.batch(root, items=50, mode="shared").gpu_mode == "shared"
    assert box.batch(alice, items=50, mode=None).gpu_mode == "shared"
    assert box.batch(alice, items=2).exclusive_run.approval == "asked"
    Quota.objects.create(user=alice, exclusive_batches=True)
    assert box.batch(alice, items=50, mode=None).gpu_mode == "exclusive"
    assert box.batch(alice, items=2).exclusive_run.approval == "none"


def shared_out(gpus: int) -> None:
    """The GPUs of the box count for shares."""
    uuids = [gpu_uuid(index) for index in range(gpus)]
    HostCapacity.objects.create(host=HOST, at=NOW, gpu_uuids=uuids, gpu_bytes=80 * GIB)


def wants(box: Box, user: User, share_pct: float, jobs: int) -> None:
    """The user has a quota, and more waiting jobs than that is worth."""
    Quota.objects.create(user=user, share_pct=share_pct)
    for _ in range(jobs):
        box.job(user)


def test_a_user_takes_as_many_gpus_as_the_own_share_is_worth(alice: User, bob: User) -> None:
    box = Box(gpus=4)
    shared_out(4)
    wants(box, bob, share_pct=50, jobs=4)
    Quota.objects.create(user=alice, share_pct=50)

    run = box.until(box.batch(alice, items=40), "working")

    assert (run.approval, len(run.gpu_uuids)) == ("share", 2)


def test_a_user_gives_gpus_up_when_the_own_share_shrinks(alice: User, bob: User) -> None:
    box = Box(gpus=4)
    shared_out(4)
    Quota.objects.create(user=alice, share_pct=25)
    batch = box.batch(alice, items=400)
    assert len(box.until(batch, "working").gpu_uuids) == 4
    wants(box, bob, share_pct=75, jobs=4)

    box.tick(4)

    assert len(box.run(batch).gpu_uuids) == 1


@pytest.mark.parametrize("is_approved", [True, False])
def test_a_user_whose_share_is_less_than_a_gpu_needs_the_approval_of_an_operator(
    alice: User, bob: User, is_approved: bool
) -> None:
    box = Box(gpus=3)
    shared_out(3)
    wants(box, bob, share_pct=90, jobs=4)
    Quota.objects.create(user=alice, share_pct=10)
    batch = box.batch(alice, items=100)

    box.tick(5)

    run = box.run(batch)
    assert (run.step, run.waits_for) == ("waiting", "the approval of an operator")
    # It shares GPUs meanwhile.
    assert batch.items.exclude(job=None).exists()
    if is_approved:
        rows.approve(batch, "root", box.now)
        assert box.until(batch, "working").gpu_uuids
    else:
        rows.stop(batch, "root", box.now)
        assert not box.until(batch, "ended").gpu_uuids


def test_items_without_a_gpu_share_by_themselves() -> None:
    policy = BatchPolicy()

    assert mode_of(500, None, gpus=0, may=True, policy=policy) == "shared"
    assert mode_of(500, None, gpus=1, may=True, policy=policy) == "exclusive"
    never = BatchPolicy(auto_exclusive_threshold=0)
    assert mode_of(500, None, gpus=1, may=True, policy=never) == "shared"


def test_the_step_follows_from_facts_alone() -> None:
    def after(step: S, seconds: float = 0, **facts: object) -> S | None:
        fact = ExclusiveFact(step=step, since=NOW, **facts)  # type: ignore[arg-type]
        return next_step(fact, NOW + timedelta(seconds=seconds))

    assert after(S.WAITING) is None
    assert after(S.WAITING, gpus=1, is_next=False) is None
    assert after(S.WAITING, gpus=1) is S.ANNOUNCED
    assert after(S.ANNOUNCED, 9) is None
    assert after(S.ANNOUNCED, 10) is S.DRAINING
    assert after(S.DRAINING, 1, loaded=1) is None
    assert after(S.DRAINING, 500, loaded=1, in_flight=1) is None
    assert after(S.DRAINING, 3, loaded=1) is S.UNLOADING
    assert after(S.UNLOADING, loaded=1) is None
    assert after(S.UNLOADING) is S.WORKING
    assert after(S.WORKING) is None
    assert after(S.WORKING, is_over=True) is S.RELOADING
    assert after(S.RELOADING, reloads=1) is None
    assert after(S.RELOADING, boots=True) is None
    assert after(S.RELOADING) is S.ENDED
    for step in (S.WAITING, S.ANNOUNCED, S.DRAINING):
        assert after(step, is_stopped=True) is S.ENDED
