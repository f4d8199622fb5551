"""Metrics of the queue and of jobs; all from rows."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db.models import Count, Min, QuerySet

from monitor.journal.rows import counters
from monitor.pages.metrics import Families
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.extensions import parts
from scheduler.disk import steps
from scheduler.disk.policy import DiskLevel
from scheduler.facts.jobs import JobState, Outcome
from scheduler.jobs.rows import durations
from scheduler.limits.throttle import step as throttle_rows
from scheduler.limits.throttle.policy.pressure import CLASSES
from scheduler.limits.throttle.policy.throttle import Mode
from scheduler.models import Job

# Metrics of the watched folders.


def add_disk_metrics(into: Families, now: datetime) -> None:
    watched = steps.watched_disks()
    cleaned = {(row.host, row.path): 0.0 for row in watched}
    cleaned |= {(row.host, row.subject): row.value for row in counters.of(steps.CLEANED_BYTES)}
    for (host, path), value in cleaned.items():
        labels = {"host": host, "path": path}
        help_text = "Bytes that clean-ups freed, by watched folder."
        into.counter("disk_cleaned_bytes_total", help_text, labels, value)
    for row in watched:
        if now - row.at > steps.STALE_AFTER:
            continue
        labels = {"host": row.host, "path": row.path}
        into.gauge(
            "gpucoord_watched_disk_used_percent",
            "Use of the file system of a watched folder, as df counts it.",
            labels,
            row.used_pct,
        )
        into.gauge(
            "gpucoord_watched_disk_blocked",
            "1 while jobs wait because the file system is full.",
            labels,
            None if row.level == DiskLevel.UNKNOWN else row.level == DiskLevel.BLOCKED,
        )


def add_metrics(into: Families, now: datetime) -> None:
    _add_open(into, now)
    _add_finished(into)
    _add_predictions(into, now)
    _add_throttle(into, now)
    add_disk_metrics(into, now)
    for add_prompts in parts("scheduler.language_models.prompts.metrics:add_metrics"):
        add_prompts(into, now)


def _add_open(into: Families, now: datetime) -> None:
    counts = {state: (count, oldest) for state, count, oldest in _states()}
    for state in JobState:
        if state is not JobState.FINISHED:
            count, _ = counts.get(state.value, (0, None))
            help_text = "Jobs that have not ended, by state."
            into.gauge("gpucoord_jobs", help_text, {"state": state.value}, count)
    _, oldest = counts.get(JobState.QUEUED.value, (0, None))
    wait = max(0.0, (now - oldest).total_seconds()) if oldest else 0
    help_text = "How long the job that waits longest has waited; 0 when none waits."
    into.gauge("gpucoord_queue_oldest_wait_seconds", help_text, {}, wait)


@compiled_once
def _states() -> QuerySet[Job, tuple[str, int, datetime]]:
    """Of unfinished jobs: each state, the number of jobs, and the oldest submission."""
    unfinished = Job.objects.exclude(state=JobState.FINISHED.value).order_by()
    return unfinished.values_list("state").annotate(Count("id"), Min("submitted_at"))


def _add_finished(into: Families) -> None:
    initial = {(settings.CONFIG.node, outcome.value): 0.0 for outcome in Outcome}
    stored = {(row.host, row.subject): row.value for row in counters.of(counters.FINISHED_JOBS)}
    for (host, outcome), count in (initial | stored).items():
        labels = {"host": host, "outcome": outcome}
        into.counter("gpucoord_jobs_finished_total", "Jobs that ended, by outcome.", labels, count)


def _add_predictions(into: Families, now: datetime) -> None:
    """Of the first predictions of jobs; without starts there is no sample but their number."""
    for row in durations.calibration(now):
        labels = {"runs": row.runs.value, "period": row.period}
        help_text = "Starts with a prediction, by earlier runs of the same owner and job name."
        into.gauge("gpucoord_predicted_starts", help_text, labels, row.starts)
        help_text = "Median difference between the first predicted and the actual start."
        error_s = None if row.error is None else row.error.total_seconds()
        into.gauge("gpucoord_prediction_error_seconds", help_text, labels, error_s)
        help_text = "Part of the starts before the predicted 90th percentile; 0.9 is expected."
        into.gauge("gpucoord_predicted_starts_before_p90_ratio", help_text, labels, row.before_p90)


def _add_throttle(into: Families, now: datetime) -> None:
    """Old values of a silent controller are left out."""
    for host, at, allowed, memory in throttle_rows.shown():
        if now - at > throttle_rows.STALE_AFTER:
            continue
        for kind in CLASSES:
            deferral = memory.deferrals.get(kind)
            into.gauge(
                "gpucoord_starts_deferred",
                "1 while jobs of a priority class are deferred by load.",
                {"host": host, "class": kind.value},
                deferral is not None and deferral.holds,
            )
        help_text = "How many more jobs may share GPUs with other jobs; no sample: any number."
        into.gauge("gpucoord_starts_allowed", help_text, {"host": host}, allowed.starts)
        for uuid, part in allowed.multipliers.items():
            help_text = "What of a GPU quotas count with, 0 to 1; 0 where it is not ours."
            into.gauge("gpucoord_quota_multiplier", help_text, {"host": host, "gpu": uuid}, part)
    for row in throttle_rows.all_modes():
        help_text = "1 while the mode is defensive."
        into.gauge(
            "gpucoord_mode_defensive", help_text, {"host": row.host}, row.mode == Mode.DEFENSIVE
        )
