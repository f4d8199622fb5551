"""Hold the further jobs of a program whose jobs fail in a row, if their owner wants it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Max, Q, QuerySet

from monitor.journal.rows import events
from monitor.runtime.rows.wakeups import wake
from scheduler.facts.jobs import JobState, Outcome
from scheduler.jobs.lifecycle.policy.retries import (
    CrashGuard,
    EndedJob,
    last_lines,
    program,
    quick_series,
    reason,
)
from scheduler.jobs.lifecycle.rows.relations import chunks
from scheduler.models import Job, NotificationSettings

# Older jobs count neither as failures nor as further jobs.
CONSIDERED = timedelta(days=7)
ROWS_AT_ONCE = 20


def hold_alike(job: Job, tail: bytes, now: datetime) -> int:
    """Hold the waiting jobs like this one, an attempt of which has failed; returns their number.

    `tail` is the end of its log. Rows of waiting jobs are changed by compare-and-set.
    """
    guard = _guard_of(job)
    if guard is None or not _has_failed(job):
        return 0
    alike = _alike(job, now)
    series = quick_series(_ended(job, alike), guard)
    if not series:
        return 0
    waiting = [row.pk for row in _same_program(job, alike.filter(state=JobState.QUEUED.value))]
    # It is a wish of the owner, who may release them.
    columns = {
        "held": reason(series, guard),
        "held_by": job.owner.username,
        "held_log": last_lines(tail),
        "held_after": job.pk,
    }
    held = 0
    for chunk in chunks(waiting):
        still = Job.objects.filter(pk__in=chunk, state=JobState.QUEUED.value, held="")
        held += still.update(**columns)
    if held:
        noun = "job" if held == 1 else "jobs"
        events.add(
            "JOB_HELD",
            f"{held} waiting {noun} like job {job.pk} ({job.name}) held: {columns['held']}",
            now=now,
            severity="warning",
            job_ref=str(job.pk),
            owner=job.owner.username,
        )
        wake("scheduler")
        wake("live")
    return held


def _guard_of(job: Job) -> CrashGuard | None:
    """None: neither the job nor the settings of its owner say so."""
    chosen = NotificationSettings.objects.filter(user=job.owner_id).first()
    if not job.pause_on_quick_failure and not (chosen and chosen.pause_on_quick_failure):
        return None
    if chosen is None:
        return CrashGuard()
    return CrashGuard(chosen.quick_failures, timedelta(seconds=chosen.quick_failure_s))


def _has_failed(job: Job) -> bool:
    """False while it is tried again: a failure counts when no retries are left."""
    ended = Job.objects.filter(pk=job.pk, state=JobState.FINISHED.value)
    return ended.filter(outcome=Outcome.FAILED.value).exists()


def _alike(job: Job, now: datetime) -> QuerySet[Job]:
    same = Q(name=job.name, cwd=job.cwd)
    if job.array is not None:
        same |= Q(array=job.array)
    return Job.objects.filter(same, owner=job.owner_id, submitted_at__gte=now - CONSIDERED)


def _ended(job: Job, alike: QuerySet[Job]) -> Iterator[EndedJob]:
    """Newest first, since the last release: a release begins a new series."""
    ended = alike.filter(state=JobState.FINISHED.value, started_at__isnull=False)
    if released := alike.aggregate(at=Max("released_at"))["at"]:
        ended = ended.filter(ended_at__gt=released)
    for row in _same_program(job, ended.order_by("-ended_at", "-pk")):
        if row.started_at is not None and row.ended_at is not None:
            yield EndedJob(row.pk, row.outcome, row.started_at, row.ended_at)


def _same_program(job: Job, rows: QuerySet[Job]) -> Iterator[Job]:
    own = program(job.argv)
    needed = rows.only("pk", "argv", "array", "outcome", "started_at", "ended_at")
    for row in needed.iterator(chunk_size=ROWS_AT_ONCE):
        if program(row.argv) == own or (job.array is not None and row.array == job.array):
            yield row
