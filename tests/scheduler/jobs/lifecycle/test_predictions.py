from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User

from scheduler.jobs.pages import serialise
from scheduler.jobs.rows import durations
from scheduler.models import Job
from scheduler.queue.planner.forecasts import Estimate
from tests import jobs_made
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def soon(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def predicted(job: Job, minutes: float, now: datetime = NOW) -> None:
    estimate = Estimate(position=1, p50=soon(minutes), p90=soon(2 * minutes))
    durations.store({job.pk: estimate}, now)
    job.refresh_from_db()


def test_the_first_and_the_latest_prediction_are_kept(alice: User) -> None:
    job = jobs_made.waiting(alice)

    predicted(job, 10)
    predicted(job, 14)

    assert (job.first_predicted_start_at, job.predicted_start_at) == (soon(10), soon(14))
    assert job.first_predicted_p90_at == soon(20)


def test_a_prediction_that_moves_by_seconds_is_not_written_again(alice: User) -> None:
    job = jobs_made.waiting(alice)
    predicted(job, 10)

    later = Estimate(position=1, p50=soon(10) + timedelta(seconds=5), p90=soon(20))
    assert durations.store({job.pk: later}, NOW) == 0


def test_the_page_says_how_far_the_first_prediction_was_off(alice: User) -> None:
    job = jobs_made.waiting(alice)
    assert serialise.prediction_sentence(job) == ""
    predicted(job, 10)
    predicted(job, 30)

    job.started_at = soon(12)
    assert serialise.prediction_sentence(job) == "It started 2 min later than first predicted."
    job.started_at = soon(9)
    assert serialise.prediction_sentence(job) == "It started 1 min earlier than first predicted."
    job.started_at = soon(25)
    assert "after the time given for nine of ten cases" in serialise.prediction_sentence(job)


def test_a_start_as_predicted_has_an_error_of_zero(alice: User) -> None:
    job = jobs_made.waiting(alice)
    predicted(job, 10)
    job.started_at = soon(10)

    assert serialise.prediction_sentence(job) == "It started when predicted."
    assert serialise.body(job, alice, NOW)["prediction_error_s"] == 0


def test_a_job_that_has_started_meanwhile_gets_no_prediction(alice: User) -> None:
    job = jobs_made.running(alice)

    predicted(job, 10)

    assert job.predicted_start_at is None


def test_a_prediction_is_asked_for_only_while_jobs_wait(alice: User) -> None:
    from scheduler.dispatch.steps.controller import Predictions

    queued: list[str] = []
    part = Predictions(lambda name, _module: queued.append(name))

    part.judge(None, NOW)
    assert queued == []
    jobs_made.waiting(alice)
    part.judge(None, NOW)
    part.judge(None, NOW + timedelta(seconds=5))
    assert queued == ["predict_starts"]
    part.judge(None, NOW + timedelta(seconds=31))
    assert len(queued) == 2


def test_only_the_nearest_jobs_are_stored(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "MOST_STORED", 1)
    first, second = jobs_made.waiting(alice), jobs_made.waiting(alice)
    estimates = {
        job.pk: Estimate(position=place, p50=soon(place), p90=soon(place))
        for place, job in ((2, first), (1, second))
    }

    assert durations.store(estimates, NOW) == 1
    second.refresh_from_db()
    assert second.predicted_start_at == soon(1)
