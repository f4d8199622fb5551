from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction

from monitor.models import Claim, Event
from scheduler.dispatch.steps import dispatcher
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.blockers import Blocker, BlockerCode
from scheduler.facts.jobs import AttemptEnding, Identity, JobState, NewJob, Outcome
from scheduler.facts.plans import Placement
from scheduler.jobs.policy import RetryDecision
from scheduler.jobs.rows import changes, transitions
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Attempt, Job
from scheduler.runner import attempt_files, files
from tests.builders import NOW, gpu_uuid

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
PLACED = {"host": "gpubox", "gpu_uuids": (gpu_uuid(0),)}


def _submit(owner: User, **changes: Any) -> Job:
    return job_queue.submit(NewJob(**({"command": "python train.py"} | changes)), owner, NOW)


def _place(job: Job) -> Attempt | None:
    return transitions.place(Placement(job_id=job.pk, **PLACED), "b007", NOW)  # type: ignore[arg-type]


def _placed(owner: User, **changes: Any) -> tuple[Job, Attempt]:
    job = _submit(owner, **changes)
    attempt = _place(job)
    assert attempt is not None
    return job, attempt


def _start(attempt: Attempt) -> bool:
    identity = Identity(
        account="alice", runner_pid=10, runner_start_ticks=1, pid=11, start_ticks=2, started_at=NOW
    )
    return transitions.record_start(attempt, identity)


def _end(attempt: Attempt, outcome: Outcome = Outcome.SUCCEEDED) -> bool:
    return transitions.record_end(
        attempt, AttemptEnding(outcome=outcome, ended_at=NOW, exit_code=0), NOW
    )


def _state(job: Job) -> str:
    job.refresh_from_db()
    return job.state


def test_it_submits_a_command_line(alice: User) -> None:
    job = _submit(alice, command="python train.py --lr 1 && echo done")

    assert job.argv == ["/bin/sh", "-c", "python train.py --lr 1 && echo done"]
    assert (job.name, job.state) == ("python train.py", "queued")
    assert Event.objects.get().text == f"alice submitted job {job.pk} (python train.py)"


def test_it_submits_arguments_as_they_are(alice: User) -> None:
    job = _submit(alice, command="", argv=("echo", "two words"), name="greeting")

    assert job.argv == ["echo", "two words"]
    assert (job.command, job.name) == ("echo 'two words'", "greeting")


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL always syncs")
def test_a_submission_is_on_the_disk_before_it_is_acknowledged(alice: User) -> None:
    def level() -> int:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA synchronous")
            return int(cursor.fetchone()[0])

    levels: list[int] = []

    def note() -> None:
        levels.append(level())

    job_queue.submit(NewJob(command="true"), alice, NOW, check=note)

    # 2 is FULL: the commit waits for the disk. Afterwards others pay no more than NORMAL, 1.
    assert (levels, level()) == ([2], 1)


@pytest.mark.django_db(transaction=True)
def test_it_submits_in_no_transaction_that_may_still_fail(alice: User) -> None:
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        _submit(alice)


def test_it_cancels_a_waiting_job_at_once(alice: User) -> None:
    job = _submit(alice)

    assert job_queue.request_cancel(job.pk, "bob", NOW)
    assert _state(job) == "finished"
    assert (job.outcome, job.cancelled_by, job.ended_at) == ("cancelled", "bob", NOW)
    assert not job_queue.request_cancel(job.pk, "bob", NOW)


def test_it_asks_for_the_end_of_a_placed_job(alice: User) -> None:
    job, _ = _placed(alice)

    assert job_queue.request_cancel(job.pk, "alice", NOW)
    assert _state(job) == "stopping"
    assert not job_queue.request_cancel(job.pk, "alice", NOW)


def test_a_cancelled_job_is_not_placed(alice: User) -> None:
    job = _submit(alice)
    job_queue.request_cancel(job.pk, "alice", NOW)

    assert _place(job) is None
    assert not Attempt.objects.exists()


def test_a_job_is_placed_once(alice: User) -> None:
    job, attempt = _placed(alice)

    assert _place(job) is None
    assert (_state(job), attempt.number) == ("starting", 1)
    assert Claim.objects.get().job_ref == str(job.pk)


def test_a_job_has_one_open_attempt(alice: User) -> None:
    job, _ = _placed(alice)

    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.create(job=job, number=2, host="gpubox", nonce="other", placed_at=NOW)


def test_a_start_is_noted_once(alice: User) -> None:
    job, attempt = _placed(alice)

    assert _start(attempt)
    assert not _start(attempt)
    assert (_state(job), job.started_at) == ("running", NOW)
    assert Claim.objects.get().leader_pid == 11


def test_a_start_does_not_undo_a_cancel(alice: User) -> None:
    job, attempt = _placed(alice)
    job_queue.request_cancel(job.pk, "alice", NOW)
    _start(attempt)

    assert _state(job) == "stopping"


@pytest.mark.parametrize("is_started", [True, False])
def test_an_end_is_noted_once_and_frees_the_gpus(alice: User, is_started: bool) -> None:
    job, attempt = _placed(alice)
    if is_started:
        _start(attempt)

    assert _end(attempt)
    assert not _end(attempt, Outcome.FAILED)
    assert (_state(job), job.outcome, job.exit_code) == ("finished", "succeeded", 0)
    assert not Claim.objects.filter(until_at=None).exists()


def test_an_attempt_that_never_ran_goes_back_into_the_queue(alice: User) -> None:
    job, attempt = _placed(alice)

    assert transitions.return_to_queue(attempt, "No runner took it up.", NOW)
    assert (_state(job), job.outcome, job.ended_at) == ("queued", "", None)
    assert not Claim.objects.filter(until_at=None).exists()
    again = _place(job)
    assert again is not None
    assert again.number == 2


def test_a_cancelled_job_does_not_go_back_into_the_queue(alice: User) -> None:
    job, attempt = _placed(alice)
    job_queue.request_cancel(job.pk, "alice", NOW)

    assert not transitions.return_to_queue(attempt, "No runner took it up.", NOW)
    assert _state(job) == "stopping"


def test_reasons_are_stored_with_waiting_jobs_only(alice: User) -> None:
    waiting, (placed, _) = _submit(alice), _placed(alice)
    why = (Blocker(code=BlockerCode.NO_GPU, holder="there is no driver."),)

    (alike,) = dispatcher.group_by_reasons({waiting.pk: why, placed.pk: why})
    assert dispatcher.store(*alike, NOW) == 1
    waiting.refresh_from_db()
    assert waiting.blockers[0]["text"] == "No GPU can be used now: there is no driver."


def test_the_database_refuses_an_end_without_an_outcome(alice: User) -> None:
    job = _submit(alice)

    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(state=JobState.FINISHED.value)


def test_a_folder_of_a_lost_row_is_not_mistaken(alice: User, data: Path) -> None:
    _, attempt = _placed(alice)
    specs = SpecWriter(data=data, run_as="service", grace_s=1, wake_folder=data / "run")
    folder = specs.folder(attempt)
    files.make_folder(folder)
    files.write_json(folder / files.SPEC, {"nonce": "of before the power cut"})
    files.write_json(folder / files.RESULT, {"nonce": "of before the power cut"})

    assert attempt_files.read_attempt(folder, attempt.nonce).result is None
    specs.write(attempt)
    assert not (folder / files.RESULT).exists()


@pytest.mark.parametrize("has_run", [True, False])
def test_a_job_of_a_deactivated_user_that_waits_again_is_held(alice: User, has_run: bool) -> None:
    """Otherwise a job with retries would go on for ever."""
    job, attempt = _placed(alice)
    alice.is_active = False
    alice.save()
    again = RetryDecision(again=True, outcome=Outcome.FAILED, text="It failed.", failures=1)

    if has_run:
        _start(attempt)
        transitions.record_end(
            attempt, AttemptEnding(outcome=Outcome.FAILED, ended_at=NOW, exit_code=1), NOW, again
        )
    else:
        transitions.return_to_queue(attempt, "No runner took it up.", NOW)

    assert _state(job) == "queued"
    assert "alice is switched off" in job.held
    assert not changes.may_release(job, alice)
