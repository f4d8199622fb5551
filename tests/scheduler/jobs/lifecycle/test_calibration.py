from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.pages.metrics import Families
from scheduler import metrics
from scheduler.jobs.policy import (
    PERIODS,
    Calibration,
    PredictedStart,
    RunsKnown,
    calibrations,
)
from scheduler.jobs.rows import durations
from scheduler.models import Attempt, Job
from tests import jobs_made
from tests.builders import NOW
from tests.monitor.scrape import scrape_of

MINUTE = timedelta(minutes=1)


def start(
    off_min: float, runs: int = 9, hours_ago: float = 1, p90_min: float | None = 10
) -> PredictedStart:
    at = NOW - timedelta(hours=hours_ago)
    p50 = at - off_min * MINUTE
    return PredictedStart(at, p50, None if p90_min is None else p50 + p90_min * MINUTE, runs)


def of(rows: list[Calibration], runs: RunsKnown, period: str) -> Calibration:
    (row,) = [row for row in rows if (row.runs, row.period) == (runs, period)]
    return row


def test_the_error_is_the_median_difference_and_early_starts_count_as_before_p90() -> None:
    made = [start(-4), start(2), start(30), start(6, p90_min=None)]
    row = of(calibrations(made, NOW), RunsKnown.ENOUGH, "24h")
    assert (row.starts, row.error) == (4, 5 * MINUTE)
    assert row.before_p90 == pytest.approx(2 / 3)


def test_each_start_counts_by_the_runs_that_were_known_and_in_its_periods() -> None:
    made = [start(1, runs, hours_ago) for runs, hours_ago in ((0, 1), (1, 48), (4, 1), (5, 25))]
    rows = calibrations(made, NOW)
    counts = {runs: [of(rows, runs, period).starts for period in PERIODS] for runs in RunsKnown}
    assert counts == {RunsKnown.NONE: [1, 1], RunsKnown.FEW: [1, 2], RunsKnown.ENOUGH: [0, 1]}


def test_without_starts_nothing_is_known() -> None:
    rows = calibrations([], NOW)
    assert {(row.starts, row.error, row.before_p90) for row in rows} == {(0, None, None)}


def ran(owner: User, at: datetime, p50_min: float | None = None) -> Job:
    """A job that started at `at` and ended a minute later."""
    job = jobs_made.finished(owner)
    p50 = None if p50_min is None else at + p50_min * MINUTE
    p90 = None if p50 is None else p50 + MINUTE
    facts = {"started_at": at, "ended_at": at + MINUTE}
    Job.objects.filter(pk=job.pk).update(
        submitted_at=at - MINUTE, first_predicted_start_at=p50, first_predicted_p90_at=p90, **facts
    )
    Attempt.objects.filter(job=job).update(**facts)
    return job


@pytest.mark.django_db
def test_first_starts_of_predicted_jobs_are_read_with_the_runs_before_them(
    alice: User, bob: User
) -> None:
    for hours in (9, 8, 7):
        ran(alice, NOW - timedelta(hours=hours))
    ran(bob, NOW - timedelta(hours=6))
    job = ran(alice, NOW - timedelta(hours=5), -3)
    ran(alice, NOW - timedelta(hours=4))
    ran(alice, NOW - timedelta(days=31), 3)
    again = Attempt.objects.get(job=job)
    again.pk, again.number, again.nonce = None, 2, "again"
    again.started_at = NOW - timedelta(hours=1)
    again.save()

    (found,) = durations.predicted_starts(NOW)
    assert (found.started_at, found.p50) == (
        NOW - timedelta(hours=5),
        NOW - timedelta(hours=5) - 3 * MINUTE,
    )
    # Three of the last day, and the one of last month.
    assert found.runs == 4


@pytest.mark.django_db
def test_metrics_and_the_status_page_show_it(alice: User, client: Client) -> None:
    now = timezone.now()
    client.force_login(alice)
    assert "Predicted starts" not in client.get("/status/").content.decode()
    durations.calibration.forget()
    ran(alice, now - timedelta(hours=2), -0.5)

    into = Families()
    metrics.add_metrics(into, now)
    samples = scrape_of(into)
    page = client.get("/status/").content.decode()

    here = {"runs": "none", "period": "24h"}
    assert samples.value("gpucoord_prediction_error_seconds", **here) == pytest.approx(30)
    assert samples.value("gpucoord_predicted_starts_before_p90_ratio", **here) == 1
    assert samples.value("gpucoord_predicted_starts", runs="few", period="30d") == 0
    assert "Predicted starts" in page
    assert "fewer than 5" in page
    assert "30 s" in page
