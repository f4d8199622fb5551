from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Gpu, ProcessMinute
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.jobs import steps
from scheduler.jobs.steps import AttemptUses
from scheduler.models import Attempt, AttemptUse, Job
from scheduler.submission.intake import actions as intake_actions
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, gpu_uuid, snapshot
from tests.monitor.past import gpu_row, process_use

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(minutes=10)
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create(username="alice")


@pytest.fixture
def card(db: None) -> Gpu:
    return gpu_row(gpu_uuid(0), NOW)


def run_seen(
    card: Gpu, job: Job, *, pid: int = 11, peak: int | None = 4 * GIB, **more: Any
) -> None:
    """A process of the job on the GPU, with one minute of use."""
    use = process_use(
        card, NOW + timedelta(seconds=30), host="gpubox", pid=pid, job_ref=str(job.pk),
        job_owner=job.owner.username,
    )  # fmt: skip
    facts = {"sm_s": 30.0, "held_s": 60.0, "known_s": 60.0, "joules": 60.0}
    ProcessMinute.objects.create(
        use=use, t=int(NOW.timestamp()), peak_memory_bytes=peak, **(facts | more)
    )


def recorded(job: Job) -> AttemptUse:
    assert AttemptUses("gpubox").judge(None, LATER) == [job.pk]
    return AttemptUse.objects.get(attempt__job=job)


def test_what_an_attempt_used_is_recorded_after_its_end(alice: User, card: Gpu) -> None:
    job = jobs_made.running(alice)
    run_seen(card, job)
    jobs_made.end(job)

    use = recorded(job)

    assert (use.peak_memory_bytes, use.sm_s, use.gpu_model, use.is_sample) == (
        4 * GIB, 30.0, H100, True,
    )  # fmt: skip
    assert not Attempt.objects.exclude(use_due_at=None).exists()


def test_processes_that_share_a_gpu_need_their_memory_together(alice: User, card: Gpu) -> None:
    job = jobs_made.running(alice)
    run_seen(card, job)
    run_seen(card, job, pid=12, peak=2 * GIB)
    jobs_made.end(job)

    assert recorded(job).peak_memory_bytes == 6 * GIB


def test_a_peak_is_unknown_when_that_of_one_process_is(alice: User, card: Gpu) -> None:
    job = jobs_made.running(alice)
    run_seen(card, job)
    run_seen(card, job, pid=12, peak=None)
    jobs_made.end(job)

    assert recorded(job).peak_memory_bytes is None


def test_processes_of_other_jobs_do_not_count(alice: User, card: Gpu) -> None:
    job, other = jobs_made.running(alice), jobs_made.waiting(alice)
    run_seen(card, other)
    jobs_made.end(job)

    assert recorded(job).sm_s is None


def test_a_job_without_a_gpu_has_nothing_to_record(alice: User) -> None:
    job = jobs_made.running(alice, (), requirement=Requirement(gpus=0))
    jobs_made.end(job)

    assert AttemptUses("gpubox").judge(None, LATER) == []


def test_an_attempt_is_recorded_on_its_own_host_alone(alice: User, card: Gpu) -> None:
    jobs_made.end(jobs_made.running(alice))

    assert AttemptUses("other").judge(None, LATER) == []


def test_one_attempt_that_cannot_be_recorded_keeps_no_other_from_it(
    alice: User, card: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = jobs_made.running(alice), jobs_made.running(alice, (1,))
    for job in (bad, good):
        jobs_made.end(job)
    real = steps.measured

    def odd(attempt: Attempt) -> Any:
        if attempt.job_id == bad.pk:
            raise ZeroDivisionError
        return real(attempt)

    monkeypatch.setattr(steps, "measured", odd)

    assert AttemptUses("gpubox").judge(None, LATER) == [good.pk]
    assert Attempt.objects.get(job=bad).use_due_at is not None


def sized(owner: User, **changes: Any) -> NewJob:
    return intake_actions.fitted(NewJob(command="python train.py", **changes), owner)


def test_a_job_that_declares_no_memory_gets_what_earlier_runs_needed(alice: User) -> None:
    snapshots.record(snapshot(1, at=NOW))
    jobs_made.past_runs(alice, 5)

    new = sized(alice)

    assert new.requirement.memory_bytes == pytest.approx(11 * GIB, rel=0.001)
    assert new.memory_is_learned


def test_a_declared_memory_stands(alice: User) -> None:
    snapshots.record(snapshot(1, at=NOW))
    jobs_made.past_runs(alice, 5)

    new = sized(alice, requirement=Requirement(memory_bytes=GIB))

    assert (new.requirement.memory_bytes, new.memory_is_learned) == (GIB, False)


@pytest.mark.parametrize("requirement", [Requirement(exclusive=True), Requirement(gpus=0)], ids=str)
def test_a_job_that_shares_no_gpu_gets_no_memory(alice: User, requirement: Requirement) -> None:
    snapshots.record(snapshot(1, at=NOW))
    jobs_made.past_runs(alice, 5)

    assert sized(alice, requirement=requirement).requirement == requirement


def test_runs_on_another_model_are_not_carried_over(alice: User) -> None:
    snapshots.record(snapshot(1, at=NOW))
    jobs_made.past_runs(alice, 5, model="NVIDIA A100-SXM4-40GB")

    assert sized(alice).requirement.memory_bytes is None


def test_on_mixed_gpus_a_job_is_sized_when_it_names_the_model_that_it_ran_on(alice: User) -> None:
    mixed = [gpu(0), gpu(1, name="NVIDIA A100-SXM4-40GB", memory_total_bytes=40 * GIB)]
    snapshots.record(snapshot(mixed, at=NOW))
    jobs_made.past_runs(alice, 5)

    assert sized(alice).requirement.memory_bytes is None
    assert sized(alice, requirement=Requirement(model="H100")).memory_is_learned


def test_runs_of_another_user_do_not_count(alice: User) -> None:
    snapshots.record(snapshot(1, at=NOW))
    jobs_made.past_runs(User.objects.create(username="bob"), 5)

    assert sized(alice).requirement.memory_bytes is None


def test_a_learned_memory_is_stored_as_such(alice: User) -> None:
    snapshots.record(snapshot(1, at=NOW))
    jobs_made.past_runs(alice, 5)

    job = jobs_made.waiting(alice, requirement=sized(alice).requirement, memory_is_learned=True)

    job.refresh_from_db()
    assert job.gpu_memory_is_learned
