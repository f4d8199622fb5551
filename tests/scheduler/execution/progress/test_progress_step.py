from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.utils import timezone

from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Claim
from scheduler.execution.steps.progress import ProgressStep
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import Requirement
from scheduler.models import Attempt, Job
from scheduler.runner import files
from scheduler.runner.accounts import own_folder
from tests import jobs_made
from tests.builders import NOW, gpu_uuid
from tests.monitor.past import gpu_row

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(seconds=62)


@pytest.fixture
def step(data: Path) -> ProgressStep:
    specs = SpecWriter(data=data, run_as="service", grace_s=1.0, wake_folder=data / "run")
    return ProgressStep(transaction.atomic, "gpubox", specs)


def progress_file(data: Path, job: Job) -> Path:
    path = own_folder(data, job.pk, uid=None, chosen=None).given_files(1).progress
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def attempt_of(job: Job) -> Attempt:
    return job.attempts.get()


def test_a_line_in_the_log_is_stored_with_the_attempt_and_its_gpu(
    step: ProgressStep, alice: User, data: Path
) -> None:
    job = jobs_made.running(alice, name="whisper")
    jobs_made.write_log(data, job, b"::gpucoord progress 0.25 part one\n")

    assert step.step(LATER) == [job.pk]

    attempt = attempt_of(job)
    assert (attempt.progress, attempt.progress_message) == (0.25, "part one")
    assert attempt.ends_p50_at == NOW + timedelta(seconds=242)
    (task,) = snapshots.gpu_tasks()[gpu_uuid(0)]
    assert (task.name, task.percent, task.ends_at) == ("whisper", 25, attempt.ends_p50_at)
    # It works, also if no process was seen on its GPU yet.
    assert Claim.objects.get().phase == "busy"


@pytest.mark.parametrize("in_log", [True, False])
def test_the_last_report_before_the_end_is_stored(
    step: ProgressStep, alice: User, data: Path, in_log: bool
) -> None:
    job = jobs_made.running(alice)
    jobs_made.write_log(data, job, b"::gpucoord progress 0.25 part one\n")
    step.step(LATER)
    if in_log:
        jobs_made.write_log(data, job, b"::gpucoord progress 1.0 all parts\n")
    else:
        progress_file(data, job).write_text("4/4 all parts")
    jobs_made.end(job)

    step.step(LATER + timedelta(seconds=2))

    attempt = attempt_of(job)
    assert (attempt.progress, attempt.progress_message) == (1.0, "all parts")
    assert not snapshots.gpu_tasks()


def test_the_progress_file_comes_before_the_log(
    step: ProgressStep, alice: User, data: Path
) -> None:
    job = jobs_made.running(alice)
    jobs_made.write_log(data, job, b"::gpucoord progress 0.25\n")
    progress_file(data, job).write_text("0.5 half")

    step.step(LATER)

    assert attempt_of(job).progress == 0.5


def test_a_link_in_place_of_the_file_is_not_followed(
    step: ProgressStep, alice: User, data: Path, tmp_path: Path
) -> None:
    job, secret = jobs_made.running(alice), tmp_path / "secret"
    secret.write_text("0.7 a secret")
    progress_file(data, job).symlink_to(secret)
    other = jobs_made.running(alice, on=(1,))
    os.link(secret, progress_file(data, other))

    assert step.step(LATER) == []


def test_a_job_that_reports_nothing_ends_by_its_estimate(step: ProgressStep, alice: User) -> None:
    job = jobs_made.running(alice, estimate=timedelta(minutes=10))

    step.step(LATER)

    attempt = attempt_of(job)
    assert attempt.progress is None
    assert attempt.ends_p50_at is not None
    assert attempt.ends_p90_at is not None
    assert NOW < attempt.ends_p50_at < attempt.ends_p90_at
    assert step.step(LATER + timedelta(seconds=2)) == []


def test_without_estimate_limit_and_history_the_end_is_unknown(
    step: ProgressStep, alice: User
) -> None:
    job = jobs_made.running(alice)

    assert step.step(LATER) == []
    assert attempt_of(job).ends_p50_at is None


def test_what_cannot_be_read_of_one_job_does_not_stop_the_others(
    step: ProgressStep, alice: User, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, good = jobs_made.running(alice), jobs_made.running(alice, on=(1,))
    jobs_made.write_log(data, broken, b"::gpucoord progress 0.1\n")
    jobs_made.write_log(data, good, b"::gpucoord progress 0.2\n")
    read = files.read_tail

    def failing(path: Path, most: int) -> bytes:
        if f"/jobs/{broken.pk}/" in str(path):
            raise ValueError("odd file")
        return read(path, most)

    monkeypatch.setattr(files, "read_tail", failing)

    assert step.step(LATER) == [good.pk]


def test_each_step_may_be_made_by_a_new_process(alice: User, data: Path) -> None:
    job = jobs_made.running(alice)
    log = jobs_made.write_log(data, job, b"::gpucoord progress 0.1\n")
    specs = SpecWriter(data=data, run_as="service", grace_s=1.0, wake_folder=data / "run")
    stored = []
    for second in range(0, 12, 3):
        with log.open("ab") as file:
            file.write(b"::gpucoord progress 0.%d\n" % (second + 1 if second < 9 else 9))
        new = ProgressStep(transaction.atomic, "gpubox", specs)
        new.step(LATER + timedelta(seconds=second))
        stored.append(attempt_of(job).progress)

    assert stored == [0.1, 0.4, 0.7, 0.9]


def test_rest_tells_everybody_the_progress_and_only_its_owner_the_message(
    step: ProgressStep, alice: User, bob: User, data: Path
) -> None:
    job = jobs_made.running(alice)
    jobs_made.write_log(data, job, b"::gpucoord progress 0.25 secret project\n")
    step.step(LATER)

    bodies = {}
    for who in (alice, bob):
        client = Client()
        client.force_login(who)
        bodies[who] = client.get(f"/api/jobs/{job.pk}/").json()

    assert {body["progress"] for body in bodies.values()} == {0.25}
    assert all(body["ends_p50_at"] and body["ends_p90_at"] for body in bodies.values())
    assert bodies[alice]["progress_message"] == "secret project"
    assert bodies[bob]["progress_message"] is None


def test_the_job_page_and_the_list_show_a_bar_and_the_expected_end(
    step: ProgressStep, alice: User, data: Path, client: Client
) -> None:
    job = jobs_made.running(alice)
    jobs_made.write_log(data, job, b"::gpucoord progress 0.25 part one\n")
    step.step(LATER)
    client.force_login(alice)

    page = client.get(f"/jobs/{job.pk}/").content.decode()
    table = client.get("/jobs/").content.decode()

    for text in (page, table):
        assert 'value="25"' in text
        assert "ends ~" in text
    assert "part one" in page


def test_a_job_that_succeeded_counts_for_its_gpu(alice: User) -> None:
    gpu_row(gpu_uuid(0), timezone.now(), host="gpubox")
    jobs_made.finished(alice)
    jobs_made.finished(alice, outcome="failed", exit_code=1)

    assert snapshots.completed_tasks("gpubox") == {gpu_uuid(0): 1}


def test_the_end_of_a_job_without_a_gpu_is_expected_too(
    step: ProgressStep, alice: User, data: Path
) -> None:
    job = jobs_made.running(alice, on=(), requirement=Requirement(gpus=0))
    jobs_made.write_log(data, job, b"::gpucoord progress 1/2\n")

    step.step(LATER)

    assert attempt_of(job).ends_p50_at == NOW + timedelta(seconds=122)
