"""Cancel, hold, release or edit jobs, one or many at once.

Each change is one transaction with one statement per 500 jobs, one event and one wake-up, so its
cost hardly depends on the number of jobs. The caller has checked the permissions.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction
from django.db.models import Q, QuerySet

from monitor.journal.rows import audit, counters, events
from monitor.runtime.rows.wakeups import wake
from scheduler.facts.jobs import JobState, Outcome
from scheduler.jobs.lifecycle.rows import relations, transitions
from scheduler.jobs.lifecycle.rows.queue import synced
from scheduler.jobs.lifecycle.rows.relations import locked, update
from scheduler.models import Job


@dataclass(frozen=True, slots=True)
class Selection:
    """The locked rows of one change; `reference` and `owner` are "" when the jobs have several."""

    ids: tuple[int, ...]
    reference: str
    owner: str
    title: str

    @property
    def references(self) -> dict[str, Any]:
        """The keywords of an event about them."""
        return {"job_ref": self.reference, "owner": self.owner}


def cancel(jobs: QuerySet[Job], by: str, now: datetime) -> int:
    """Cancel the waiting ones of these at once and ask the runners of the started ones to stop.

    Returns how many jobs that were. When this returns, not even a power cut undoes it.
    """
    mark = {"cancel_requested_at": now, "cancelled_by": by}
    with synced(), transaction.atomic():
        transitions.lock()
        waiting = _locked(jobs.filter(state=JobState.QUEUED.value))
        started = _locked(jobs.filter(state__in=(JobState.STARTING.value, JobState.RUNNING.value)))
        update(
            waiting.ids,
            state=JobState.FINISHED.value,
            outcome=Outcome.CANCELLED.value,
            ended_at=now,
            blockers=[],
            env={},
            **mark,
        )
        relations.forget_environments(waiting.ids)
        update(started.ids, state=JobState.STOPPING.value, **mark)
        if waiting.ids:
            counters.add(counters.FINISHED_JOBS, Outcome.CANCELLED.value, len(waiting.ids))
            events.add(
                "JOB_FINISHED", f"{by} cancelled {waiting.title}", now=now, **waiting.references
            )
            relations.skip_dependents(waiting.ids, Outcome.CANCELLED, now)
        _wake_if(waiting.ids or started.ids)
    return len(waiting.ids) + len(started.ids)


def hold(jobs: QuerySet[Job], by: str, now: datetime, reason: str = "") -> int:
    """Hold the waiting ones of these jobs; returns their number."""
    why = f": {reason.rstrip('. ')}" if reason else ""
    with transaction.atomic():
        transitions.lock()
        waiting = _locked(jobs.filter(state=JobState.QUEUED.value, held=""))
        update(waiting.ids, held=f"{by} holds it until it is released{why}.", held_by=by)
        if waiting.ids:
            events.add(
                "JOB_HELD", f"{by} holds {waiting.title}{why}", now=now, **waiting.references
            )
        _wake_if(waiting.ids)
    return len(waiting.ids)


def release(jobs: QuerySet[Job], by: str, now: datetime) -> int:
    """Let the held ones of these start, and reset their counts of yields and losses.

    Jobs that were held together after quick failures are released together.
    """
    with transaction.atomic():
        transitions.lock()
        held_jobs = _locked(_with_those_held_together(jobs))
        update(
            held_jobs.ids,
            held="",
            held_by="",
            held_log="",
            held_after=None,
            requeues=0,
            released_at=now,
        )
        if held_jobs.ids:
            events.add(
                "JOB_RELEASED", f"{by} released {held_jobs.title}", now=now, **held_jobs.references
            )
        _wake_if(held_jobs.ids)
    return len(held_jobs.ids)


def _with_those_held_together(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """The held ones of these jobs, and those that were held after the same failure."""
    held = jobs.filter(state=JobState.QUEUED.value).exclude(held="")
    after = set(held.exclude(held_after=None).values_list("held_after", flat=True))
    if not after:
        return held
    together = Job.objects.filter(held_after__in=after, state=JobState.QUEUED.value)
    return Job.objects.filter(Q(pk__in=held.values("pk")) | Q(pk__in=together.values("pk")))


def _locked(jobs: QuerySet[Job]) -> Selection:
    """The rows of these jobs, which no other transaction changes until this one ends."""
    rows = list(locked(jobs).values_list("id", "array", "owner_id", "name"))
    ids = tuple(row[0] for row in rows)
    arrays, owners = {row[1] for row in rows}, {row[2] for row in rows}
    owner = User.objects.get(pk=owners.pop()).username if len(owners) == 1 else ""
    if len(ids) == 1:
        return Selection(ids, str(ids[0]), owner, f"job {ids[0]} ({rows[0][3]})")
    array = arrays.pop() if len(arrays) == 1 else None
    if array is not None:
        return Selection(ids, str(array), owner, f"{len(ids)} jobs of array {array}")
    return Selection(ids, "", owner, f"{len(ids)} jobs")


def _wake_if(changed: object) -> None:
    if changed:
        wake("scheduler")
        wake("live")


def change(jobs: QuerySet[Job], by: str, now: datetime, fields: str, **columns: Any) -> int:
    """Set columns of the waiting ones of these; returns how many jobs that were.

    fields: the changed fields in words.
    """
    with transaction.atomic():
        transitions.lock()
        waiting = _locked(jobs.filter(state=JobState.QUEUED.value))
        update(waiting.ids, **columns)
        if waiting.ids:
            text = f"{by} changed {waiting.title}: {fields}"
            events.add("JOB_CHANGED", text, now=now, **waiting.references)
        _wake_if(waiting.ids)
    return len(waiting.ids)


def may_hold(job: Job, person: User | AnonymousUser) -> bool:
    """The owner and operators."""
    return job.owner_id == person.pk or person.is_staff


def may_release(job: Job, person: User | AnonymousUser) -> bool:
    """Operators release every job; owners release jobs that no other user holds."""
    by_another = job.held_by not in ("", job.owner.username)
    return person.is_staff or (job.owner_id == person.pk and not by_another)


def hold_job(job_id: int, by: str, now: datetime, reason: str = "") -> bool:
    """Hold a waiting job; False: it no longer waits or is held already.

    The caller has checked may_hold().
    """
    return hold(Job.objects.filter(pk=job_id), by, now, reason) > 0


def hold_all_of(owner: User, now: datetime) -> int:
    """Hold all waiting jobs of a deactivated account; only operators release them."""
    reason = f"the account {owner.username} is switched off"
    return hold(Job.objects.filter(owner=owner), audit.GPUCOORD, now, reason)


def releasable(jobs: QuerySet[Job], person: User) -> QuerySet[Job]:
    """Those of these that may_release() allows."""
    if person.is_staff:
        return jobs
    return jobs.filter(owner=person, held_by__in=("", person.username))


def release_job(job_id: int, by: str, now: datetime) -> bool:
    """Let a held job start and reset its count of yields; the caller has checked may_release()."""
    return release(Job.objects.filter(pk=job_id), by, now) > 0
