from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db.models import Q
from django.test import Client

from scheduler.execution.steps import specs
from scheduler.jobs import steps
from scheduler.jobs.rows import changes as job_changes
from scheduler.models import Attempt, Job, JobInput
from scheduler.runner import files
from scheduler.submission.intake import actions as intake_actions
from tests import jobs_made
from tests.builders import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def submit(owner: User, stdin: bytes, **raw: object) -> Job:
    encoded = base64.b64encode(stdin).decode()
    body = {"command": "cat", "gpus": 0, "stdin_base64": encoded} | raw
    return intake_actions.submit(body, owner, NOW)


def test_the_jobs_of_an_array_share_one_input(alice: User) -> None:
    first = submit(alice, b"data", array="0-2")

    assert JobInput.objects.get().job_id == first.pk
    for job in Job.objects.filter(array=first.pk):
        assert specs.data_of(job) == b"data"


def test_an_input_is_kept_until_all_its_jobs_have_ended(alice: User, data: Path) -> None:
    first = submit(alice, b"data", array="0-1")
    second = Job.objects.get(array_index=1)
    job_changes.cancel(Job.objects.filter(pk=first.pk), "alice", NOW)
    assert steps.forget(data, "gpubox") == 0

    jobs_made.place_again(second)
    file = files.attempt_folder(data, second.pk, 1) / files.STDIN
    files.make_folder(file.parent)
    files.write_private(file, b"data")
    assert file.stat().st_mode & 0o777 == 0o600
    jobs_made.end(second)
    assert Attempt.objects.get().host == "gpubox"

    assert steps.forget(data, "gpubox") == 1
    assert not file.exists()
    assert not JobInput.objects.exists()


@pytest.mark.parametrize("text", ["not base64!", "AAA", "ä"])
def test_what_is_not_base64_is_refused(alice: User, text: str) -> None:
    with pytest.raises(intake_actions.UnableToSubmit, match="in base64"):
        intake_actions.submit({"command": "cat", "gpus": 0, "stdin_base64": text}, alice, NOW)


def test_more_than_1_mib_is_refused(alice: User) -> None:
    submit(alice, b"x" * 1024**2)
    for size in (1024**2 + 1, 1024**2 + 1000):
        with pytest.raises(intake_actions.UnableToSubmit, match="more than 1 MiB"):
            submit(alice, b"x" * size)


def test_the_inputs_of_all_jobs_of_a_user_are_bounded(
    alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_actions, "MOST_INPUT_BYTES", 3 * 1024**2)
    for _ in range(3):
        submit(alice, b"x" * 1024**2)

    with pytest.raises(intake_actions.UnableToSubmit, match=r"queue: Your jobs have 3\.0 MiB"):
        submit(alice, b"x")
    submit(bob, b"x")


def test_the_jobs_of_an_array_share_one_environment_until_the_last_has_ended(
    alice: User, data: Path
) -> None:
    raw = {"command": "env", "gpus": 0, "array": "0-1", "environment": {"A": "1"}}
    first = intake_actions.submit(raw, alice, NOW)
    second = Job.objects.get(array_index=1)

    assert [specs.environment_of(job) for job in (first, second)] == [{"A": "1"}] * 2
    assert (JobInput.objects.get().size, first.has_input) == (2, False)
    job_changes.cancel(Job.objects.filter(pk=first.pk), "alice", NOW)
    assert specs.environment_of(second) == {"A": "1"}
    jobs_made.place_again(second)
    jobs_made.end(second)
    assert JobInput.objects.get().environment == {}
    assert steps.forget(data, "gpubox") == 1
    assert not JobInput.objects.exists()


def test_jobs_that_are_cancelled_or_skipped_together_leave_no_environment(alice: User) -> None:
    raw = {"command": "env", "gpus": 0, "environment": {"A": "1"}}
    array = intake_actions.submit(raw | {"array": "0-2"}, alice, NOW)
    single = intake_actions.submit(raw, alice, NOW)
    intake_actions.submit(raw | {"after_success": [single.pk]}, alice, NOW)
    other = intake_actions.submit(raw, alice, NOW)

    waiting = Job.objects.filter(Q(array=array.pk) | Q(pk=single.pk))
    assert job_changes.cancel(waiting, "alice", NOW) == 4

    kept = {row.job_id for row in JobInput.objects.all() if row.environment}
    assert kept == {other.pk}


def test_the_end_of_a_job_leaves_the_environment_of_an_array(alice: User) -> None:
    raw = {"command": "env", "gpus": 0, "environment": {"A": "1"}}
    single = intake_actions.submit(raw, alice, NOW)
    array = intake_actions.submit(raw | {"array": "0-1"}, alice, NOW)

    job_changes.cancel(Job.objects.filter(pk=single.pk), "alice", NOW)

    assert specs.environment_of(array) == {"A": "1"}


@pytest.mark.parametrize("has_started", [True, False])
def test_the_environment_of_a_job_is_deleted_at_its_end(alice: User, has_started: bool) -> None:
    raw = {"command": "env", "gpus": 0, "environment": {"A": "1"}}
    job = intake_actions.submit(raw, alice, NOW)
    if has_started:
        jobs_made.place_again(job)
        assert specs.environment_of(job) == {"A": "1"}
        jobs_made.end(job)
    else:
        job_changes.request_cancel(job.pk, "alice", NOW)

    assert JobInput.objects.get().environment == {}


def test_nobody_is_shown_the_environment(root: User, as_user: Callable[[User], Client]) -> None:
    raw = {"command": "env", "gpus": 0, "environment": {"A": "hidden value"}}
    job = intake_actions.submit(raw, root, NOW)

    for path in (f"/admin/scheduler/jobinput/{job.pk}/change/", f"/api/jobs/{job.pk}/"):
        answer = as_user(root).get(path)
        assert (answer.status_code, b"hidden value" in answer.content) == (200, False)
