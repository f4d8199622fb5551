"""Rows: whether a person's own limits can ever allow what they ask for."""

from __future__ import annotations

from django.contrib.auth.models import User

from scheduler import quota_rows
from scheduler.jobs import JobState, NewJob, Refusal
from scheduler.models import Job
from scheduler.people import Quota
from scheduler.policy import hard_limits
from scheduler.standing import capacity


def refuse(new: NewJob, owner: User) -> list[Refusal]:
    """What is refused at once, with the numbers. In the transaction that puts it into the queue."""
    quota = quota_rows.of_person(owner)
    if quota.queued is not None:
        # Of two jobs that come at once, the second counts the first.
        User.objects.select_for_update().get(pk=owner.pk)
    return _refusals(new, owner, quota)


def refusals(new: NewJob, owner: User) -> list[Refusal]:
    """The same for who only asks."""
    return _refusals(new, owner, quota_rows.of_person(owner))


def _refusals(new: NewJob, owner: User, quota: Quota) -> list[Refusal]:
    waiting = _waiting(owner) if quota.queued is not None else 0
    sizes_count = quota.memory_bytes is not None or quota.gpu_minutes is not None
    gpu_bytes = capacity().gpu_bytes if sizes_count else None
    return hard_limits.refusals(new, quota, waiting, gpu_bytes)


def _waiting(owner: User) -> int:
    return Job.objects.filter(owner=owner, state=JobState.QUEUED.value).count()
