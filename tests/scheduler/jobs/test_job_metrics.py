from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User

from monitor.pages.metrics import Families
from scheduler import metrics
from scheduler.facts.jobs import Outcome
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Job
from tests.builders import NOW
from tests.jobs_made import finished, placed, running, waiting
from tests.monitor.scrape import Scrape, scrape_of

pytestmark = pytest.mark.django_db


def scrape(later: timedelta = timedelta()) -> Scrape:
    into = Families()
    metrics.add_metrics(into, NOW + later)
    return scrape_of(into)


def test_jobs_that_have_not_ended_are_counted_by_state(alice: User) -> None:
    waiting(alice)
    waiting(alice)
    placed(alice)
    running(alice)
    finished(alice)

    samples = scrape()

    counts = {s.labels["state"]: s.value for s in samples.families["gpucoord_jobs"].samples}
    assert counts == {"queued": 2, "starting": 1, "running": 1, "stopping": 0}


def test_the_oldest_wait_is_that_of_the_job_that_waits_longest(alice: User) -> None:
    waiting(alice, NOW - timedelta(minutes=3))
    waiting(alice, NOW - timedelta(minutes=1))
    running(alice, on=(0,))

    assert scrape().value("gpucoord_queue_oldest_wait_seconds") == 180


def test_nobody_waits_in_an_empty_queue(alice: User) -> None:
    running(alice)

    samples = scrape(later=timedelta(hours=1))

    assert samples.value("gpucoord_queue_oldest_wait_seconds") == 0


def test_jobs_that_ended_are_counted_by_outcome(alice: User) -> None:
    finished(alice)
    finished(alice)
    finished(alice, "failed", exit_code=1)
    job_queue.request_cancel(waiting(alice).pk, "alice", NOW)

    samples = scrape()

    ended = {
        s.labels["outcome"]: s.value for s in samples.families["gpucoord_jobs_finished"].samples
    }
    assert ended == dict.fromkeys(map(str, Outcome), 0) | {
        "succeeded": 2,
        "failed": 1,
        "cancelled": 1,
    }


def test_jobs_that_ended_stay_counted_when_they_are_deleted(alice: User) -> None:
    finished(alice)
    Job.objects.all().delete()

    assert scrape().value("gpucoord_jobs_finished_total", outcome="succeeded") == 1
