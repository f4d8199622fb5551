"""Rows: hold a waiting job back until a person lets it go."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction
from django.db.models import Max

from monitor import audit, events
from monitor.models import Event
from monitor.wake import wake
from scheduler.jobs import JobState
from scheduler.models import Job


def may_hold(job: Job, person: User | AnonymousUser) -> bool:
    """The owner and operators."""
    return job.owner_id == person.pk or person.is_staff


def may_release(job: Job, person: User | AnonymousUser) -> bool:
    """What an operator holds, operators release; all else its owner too."""
    by_another = job.held_by not in ("", job.owner.username)
    return person.is_staff or (job.owner_id == person.pk and not by_another)


def hold(job_id: int, by: str, now: datetime, reason: str = "") -> bool:
    """Keep a waiting job from starting; False when it waits no more, or is held already.

    The caller has checked may_hold().
    """
    why = f": {reason.rstrip('. ')}" if reason else ""
    with transaction.atomic():
        waiting = Job.objects.filter(pk=job_id, state=JobState.QUEUED.value, held="")
        if not waiting.update(held=f"{by} holds it until it is released{why}.", held_by=by):
            return False
        job = _changed(job_id)
        events.add("JOB_HELD", f"{by} holds {_title(job)}{why}", now=now, **_about(job))
    return True


def hold_all_of(owner: User, now: datetime) -> int:
    """For somebody whose account is switched off; how many jobs. Only operators release them."""
    waiting = Job.objects.filter(owner=owner, state=JobState.QUEUED.value, held="")
    reason = f"the account {owner.username} is switched off"
    jobs = list(waiting.order_by("id").values_list("id", flat=True))
    return sum(hold(job, audit.GPUCOORD, now, reason) for job in jobs)


def release(job_id: int, by: str, now: datetime) -> bool:
    """Let a held job go, and count its yields anew; the caller has checked may_release()."""
    with transaction.atomic():
        held = Job.objects.filter(pk=job_id, state=JobState.QUEUED.value).exclude(held="")
        if not held.update(held="", held_by="", requeues=0):
            return False
        job = _changed(job_id)
        events.add("JOB_RELEASED", f"{by} released {_title(job)}", now=now, **_about(job))
    return True


def released_at(job_id: int) -> datetime | None:
    """When a person last let it go."""
    found = Event.objects.filter(kind="JOB_RELEASED", job_ref=str(job_id)).aggregate(Max("at"))
    at: datetime | None = found["at__max"]
    return at


def _changed(job_id: int) -> Job:
    wake("scheduler")
    wake("live")
    return Job.objects.select_related("owner").get(pk=job_id)


def _title(job: Job) -> str:
    return f"job {job.pk} ({job.name})"


def _about(job: Job) -> dict[str, Any]:
    return {"job_ref": str(job.pk), "owner": job.owner.username}
