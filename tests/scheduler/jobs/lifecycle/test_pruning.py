"""Rows and variables of jobs that have ended."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db.models import Sum

from monitor.models import Claim
from monitor.usage.rows import rollups
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.jobs.policy import RetentionPolicy
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Attempt, DailyGpuUsage, Job, JobDependency
from scheduler.runner import attempt_files, files
from tests import jobs_made
from tests.builders import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
KEEP = RetentionPeriods(raw=timedelta(hours=2))
LATER = NOW + timedelta(days=366)
SECRET = {"API_KEY": "s3cret"}


def _ended(owner: User, **changes: object) -> Job:
    """Its files have been cleared."""
    job = jobs_made.finished(owner)
    Attempt.objects.filter(job=job).update(files_gone_at=NOW)
    Job.objects.filter(pk=job.pk).update(**changes)
    return job


def _left() -> set[int]:
    rollups.prune(KEEP, LATER)
    return set(Job.objects.values_list("pk", flat=True))


def test_jobs_that_ended_long_ago_are_deleted_with_their_attempts(alice: User) -> None:
    _ended(alice)
    recent = _ended(alice, ended_at=LATER - timedelta(days=364))

    assert _left() == {recent.pk}
    assert set(Attempt.objects.values_list("job_id", flat=True)) == {recent.pk}


def test_jobs_that_have_not_ended_are_never_deleted(alice: User) -> None:
    open_jobs = {jobs_made.waiting(alice).pk, jobs_made.running(alice).pk}

    assert _left() == open_jobs


def test_a_job_stays_while_its_files_are_there(alice: User) -> None:
    job = jobs_made.finished(alice)

    assert _left() == {job.pk}


def test_files_of_a_host_that_is_gone_keep_a_job_only_for_a_while(alice: User) -> None:
    jobs_made.finished(alice)
    rollups.prune(KEEP, LATER + timedelta(days=91))

    assert not Job.objects.exists()


def test_a_job_stays_while_another_waits_for_it(alice: User) -> None:
    job, waiting = _ended(alice), jobs_made.waiting(alice)
    JobDependency.objects.create(job=waiting, on=job)

    assert _left() == {job.pk, waiting.pk}


def test_a_member_stays_while_its_array_has_another_that_has_not_ended(alice: User) -> None:
    job, waiting = _ended(alice), jobs_made.waiting(alice)
    Job.objects.filter(pk__in=(job.pk, waiting.pk)).update(array=job.pk)

    assert _left() == {job.pk, waiting.pk}


def test_charges_stay_when_jobs_are_deleted(alice: User) -> None:
    DailyGpuUsage.objects.create(host="gpubox", owner="alice", from_at=NOW, job_s=60.0)
    _ended(alice)

    assert _left() == set()
    assert DailyGpuUsage.objects.aggregate(Sum("job_s"))["job_s__sum"] == 60.0


def test_many_jobs_are_deleted_in_few_statements(
    alice: User, django_assert_max_num_queries: object
) -> None:
    for _ in range(30):
        _ended(alice)
    Claim.objects.all().delete()

    with django_assert_max_num_queries(80):  # type: ignore[operator]
        assert _left() == set()


def test_records_are_kept_at_least_as_long_as_files() -> None:
    assert "record_days" in RetentionPolicy(days=90, record_days=30).conflicts()


@pytest.mark.parametrize("how", ["finished", "cancelled"])
def test_the_values_of_variables_are_dropped_at_the_end(alice: User, how: str) -> None:
    job = jobs_made.waiting(alice, env=SECRET)
    assert job.env == SECRET
    if how == "finished":
        jobs_made.place_again(job)
        jobs_made.end(job)
    else:
        assert job_queue.request_cancel(job.pk, "alice", NOW)
    job.refresh_from_db()

    assert (job.env, job.env_names) == ({}, ["API_KEY"])


def test_a_job_that_runs_again_keeps_its_variables(alice: User) -> None:
    from scheduler.jobs.rows import transitions

    job, attempt = jobs_made.placed(alice, env=SECRET)
    transitions.return_to_queue(attempt, "No runner took it up.", NOW)
    job.refresh_from_db()

    assert job.env == SECRET


def test_an_attempt_that_is_given_up_keeps_no_variables_on_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "1" / "1"
    (tmp_path / "jobs").mkdir()
    files.make_folder(folder)
    files.write_json(folder / files.SPEC, {"nonce": "n", "env": SECRET})

    assert attempt_files.give_up(folder, "n")
    assert files.read_json(folder / files.SPEC) == {"nonce": "n", "env": {}}
