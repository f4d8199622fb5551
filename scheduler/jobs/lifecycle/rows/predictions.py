"""Rows: the first and the latest predicted start of each waiting job, and how good they were.

A short task computes them while jobs wait, so that a prediction exists for jobs whose page is
never opened.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from monitor.runtime.facts import TimedCache
from monitor.runtime.rows.prepared import compiled_once
from scheduler.facts.jobs import JobState, Outcome
from scheduler.jobs.lifecycle.policy.calibration import LONGEST, PredictedStart, calibrations
from scheduler.models import Attempt, Job
from scheduler.queue.planner.forecast.forecast import Estimate

EVERY = timedelta(seconds=30)
# Jobs further back in the queue are predicted when they come nearer.
MOST_STORED = 200
# Smaller changes of a prediction are not written.
LEAST_CHANGE = timedelta(seconds=10)
# Attempts and ended jobs that are read to judge predictions.
MOST_READ = 2000
JUDGED_EVERY = timedelta(minutes=2)
FIELDS = ("first_predicted_start_at", "first_predicted_p90_at", "predicted_start_at")


def jobs_wait() -> bool:
    return bool(_first_waiting())


@compiled_once
def _first_waiting() -> QuerySet[Any, int]:
    return (
        Job.objects.filter(state=JobState.QUEUED.value).order_by().values_list("pk", flat=True)[:1]
    )


def store(estimates: Mapping[int, Estimate], now: datetime) -> int:
    """Store predictions of the first waiting jobs; returns how many rows changed."""
    upcoming = [
        (estimate.position or MOST_STORED, job_id)
        for job_id, estimate in estimates.items()
        if estimate.p50 is not None and estimate.p50 > now
    ]
    nearest = [job_id for _, job_id in sorted(upcoming)[:MOST_STORED]]
    rows = Job.objects.filter(pk__in=nearest, state=JobState.QUEUED.value).only("id", *FIELDS)
    changed = [job for job in rows if _update(job, estimates[job.pk])]
    return Job.objects.bulk_update(changed, FIELDS) if changed else 0


def _update(job: Job, estimate: Estimate) -> bool:
    if estimate.p50 is None:
        return False
    last = job.predicted_start_at
    if last is not None and abs(estimate.p50 - last) < LEAST_CHANGE:
        return False
    job.predicted_start_at = estimate.p50
    if job.first_predicted_start_at is None:
        job.first_predicted_start_at = estimate.p50
        job.first_predicted_p90_at = estimate.p90
    return True


def predicted_starts(now: datetime) -> list[PredictedStart]:
    """The first starts of predicted jobs in the last 30 days, of the newest attempts."""
    columns = ("job_id", "job__owner_id", "job__name", "job__submitted_at", "started_at")
    predicted = ("job__first_predicted_start_at", "job__first_predicted_p90_at")
    newest = Attempt.objects.order_by("-pk").values_list(*columns, *predicted)[:MOST_READ]
    first: dict[int, tuple[Any, ...]] = {}
    for job, *row in newest:
        # A later attempt of the job was read before.
        if row[3] is not None:
            first[job] = tuple(row)
    starts = [row for row in first.values() if row[4] is not None and now - row[3] <= LONGEST]
    ends = _ends_by_name({row[0] for row in starts})
    return [
        PredictedStart(started_at, p50, p90, bisect_left(ends.get((owner, name), []), submitted_at))
        for owner, name, submitted_at, started_at, p50, p90 in starts
    ]


def _ends_by_name(owners: Collection[int]) -> dict[tuple[int, str], list[datetime]]:
    """By owner and name: when runs that tell a run time ended, oldest first."""
    if not owners:
        return {}
    over = (Outcome.SUCCEEDED.value, Outcome.TIMED_OUT.value)
    rows = Job.objects.filter(owner__in=owners, outcome__in=over, started_at__isnull=False)
    ends: dict[tuple[int, str], list[datetime]] = {}
    for owner, name, ended_at in rows.order_by("-pk").values_list("owner", "name", "ended_at")[
        :MOST_READ
    ]:
        if ended_at is not None:
            insort(ends.setdefault((owner, name), []), ended_at)
    return ends


# Scrapes and viewers of the status page ask for it every few seconds.
calibration = TimedCache(lambda now: calibrations(predicted_starts(now), now), JUDGED_EVERY)
