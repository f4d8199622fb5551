"""Rows: what an operator may change of a job that still waits."""

from __future__ import annotations

from django.db import transaction

from monitor.wake import wake
from scheduler.jobs import JobState
from scheduler.models import Job


def change_waiting(job_id: int, *, name: str, priority: int) -> bool:
    """Rename a waiting job, or serve it earlier or later; False when it waits no more."""
    with transaction.atomic():
        waiting = Job.objects.filter(pk=job_id, state=JobState.QUEUED.value)
        if not waiting.update(name=name, priority=priority):
            return False
        wake("scheduler")
        wake("live")
    return True
