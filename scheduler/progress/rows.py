"""Rows of running attempts with their progress and their expected ends."""

from __future__ import annotations

from datetime import datetime, timedelta

from monitor.models import Claim
from scheduler.facts.jobs import RunTime
from scheduler.lifecycle.rows.queue_facts import Durations
from scheduler.models import Attempt
from scheduler.progress.policy import Ends, Progress


def running(host: str) -> list[Attempt]:
    """The attempts on this host whose processes run, with their jobs and owners."""
    rows = Attempt.objects.filter(host=host, ended_at=None, started_at__isnull=False)
    return sorted(rows.select_related("job__owner"), key=lambda attempt: attempt.pk)


def progress_of(attempt: Attempt) -> Progress | None:
    """None: the job has reported none."""
    if attempt.progress is None:
        return None
    return Progress(attempt.progress, attempt.progress_message)


def ends_of(attempt: Attempt) -> Ends | None:
    """None: nothing says when it ends, or it has ended."""
    if attempt.ended_at or attempt.ends_p50_at is None or attempt.ends_p90_at is None:
        return None
    return Ends(attempt.ends_p50_at, attempt.ends_p90_at)


def usual(attempt: Attempt, durations: Durations) -> RunTime | None:
    """The run time by estimate, limit or history; None: the job has none of them."""
    job = attempt.job
    owner, limit, estimate = job.owner.username, job.time_limit_s, job.estimate_s
    if limit is None and estimate is None and durations(owner, job.name) is None:
        return None
    return durations.expect(owner, job.name, _seconds(limit), _seconds(estimate))


def _seconds(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def store(
    attempt: Attempt, progress: Progress | None, ends: Ends | None, reported_at: datetime | None
) -> bool:
    """Store both with the attempt and its claims. False: it has ended meanwhile."""
    fraction = progress.fraction if progress else None
    is_stored = Attempt.objects.filter(pk=attempt.pk, ended_at=None).update(
        progress=fraction,
        progress_message=progress.message if progress else "",
        progress_at=reported_at,
        ends_p50_at=ends.p50 if ends else None,
        ends_p90_at=ends.p90 if ends else None,
    )
    if is_stored and attempt.gpu_uuids:
        claims = Claim.objects.filter(
            host=attempt.host, freed_at=None, job_ref=str(attempt.job_id), until_at=None
        )
        claims.update(progress=fraction, ends_at=ends.p50 if ends else None)
    return bool(is_stored)
