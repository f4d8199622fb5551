"""Rows: the first and the latest predicted start of each waiting job.

A short task computes them while jobs wait, so that a prediction exists for jobs whose page is
never opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from monitor.runtime.rows.prepared import compiled_once
from scheduler.facts.jobs import JobState
from scheduler.models import Job
from scheduler.planner.forecast.forecast import Estimate

EVERY = timedelta(seconds=30)
# Jobs further back in the queue are predicted when they come nearer.
MOST_STORED = 200
# Smaller changes of a prediction are not written.
LEAST_CHANGE = timedelta(seconds=10)
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
