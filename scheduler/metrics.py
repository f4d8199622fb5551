"""Metrics of the queue and of jobs; all from rows."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db.models import Count, Min

from monitor import tallies
from monitor.metric_families import Families
from scheduler import throttle_metrics
from scheduler.jobs import JobState, Outcome
from scheduler.models import Job


def add_metrics(into: Families, now: datetime) -> None:
    _add_open(into, now)
    _add_finished(into)
    throttle_metrics.add_metrics(into, now)


def _add_open(into: Families, now: datetime) -> None:
    unfinished = Job.objects.exclude(state=JobState.FINISHED.value).order_by()
    rows = unfinished.values_list("state").annotate(Count("id"), Min("submitted_at"))
    found = {state: (count, oldest) for state, count, oldest in rows}
    for state in JobState:
        if state is not JobState.FINISHED:
            count, _ = found.get(state.value, (0, None))
            what = "Jobs that have not ended, by state."
            into.gauge("gpucoord_jobs", what, {"state": state.value}, count)
    _, oldest = found.get(JobState.QUEUED.value, (0, None))
    wait = max(0.0, (now - oldest).total_seconds()) if oldest else 0
    what = "How long the job that waits longest has waited; 0 when none waits."
    into.gauge("gpucoord_queue_oldest_wait_seconds", what, {}, wait)


def _add_finished(into: Families) -> None:
    here = {(settings.CONFIG.node, outcome.value): 0.0 for outcome in Outcome}
    there = {(row.host, row.subject): row.value for row in tallies.of(tallies.FINISHED_JOBS)}
    for (host, outcome), count in (here | there).items():
        labels = {"host": host, "outcome": outcome}
        into.counter("gpucoord_jobs_finished_total", "Jobs that ended, by outcome.", labels, count)
