"""Rows of interactive jobs: those that run on a host, and their warnings."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet

from scheduler.facts.jobs import JobState
from scheduler.lifecycle.rows import changes
from scheduler.models import Attempt, Job

ENDED_BY = "gpucoord (idle GPU)"


def on_gpus(host: str) -> QuerySet[Attempt]:
    """The attempts of running interactive jobs with GPUs of this host."""
    rows = Attempt.objects.filter(
        host=host,
        ended_at=None,
        started_at__isnull=False,
        job__interactive=True,
        job__gpus__gt=0,
        job__state=JobState.RUNNING.value,
    )
    return rows.select_related("job__owner").order_by("pk")


def warn(job: Job, text: str, now: datetime) -> None:
    Job.objects.filter(pk=job.pk).update(idle_warned_at=now, idle_warning=text)


def forget_warning(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(idle_warned_at=None, idle_warning="")


def end(job: Job, now: datetime) -> None:
    changes.cancel(Job.objects.filter(pk=job.pk), ENDED_BY, now)
