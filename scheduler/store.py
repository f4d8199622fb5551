"""Rows: submit, cancel and the queue. Moves by the loop are in transitions.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import connection, transaction

from monitor import events, tallies
from monitor.wake import wake
from scheduler import dependencies
from scheduler.jobs import JobState, NewJob, Outcome
from scheduler.models import Job

# What `queue_mark` is then.
NOBODY_WAITS = (0, None)
# Said twice, so that the index of open jobs answers it alone, however many there are.
_WAITING = " FROM scheduler_job WHERE state = 'queued' AND NOT (state = 'finished')"


def submit(new: NewJob, owner: User, now: datetime, check: Callable[[], None] | None = None) -> Job:
    """Put a job into the queue; when this returns, not even a power cut loses it.

    Of an array it returns the first job, whose number is the array's. `check` raises if the job
    may not be taken, and counts what is there in the same transaction.
    """
    with synced(), transaction.atomic(durable=True):
        if check is not None:
            check()
        jobs = _create(new, owner, now)
        job = jobs[0]
        dependencies.start(jobs, new.after, now)
        what = f"array {job.pk} of {len(jobs)} jobs" if new.array else f"job {job.pk}"
        text = f"{owner.username} submitted {what} ({job.name})"
        events.add("JOB_SUBMITTED", text, now=now, job_ref=str(job.pk), owner=owner.username)
        _wake_all()
    return job


def _create(new: NewJob, owner: User, now: datetime) -> list[Job]:
    if not new.array:
        return [Job.objects.create(**_columns(new, owner, now))]
    first, *rest = (Job(**_columns(new, owner, now), array_index=index) for index in new.array)
    first.save(force_insert=True)
    first.array = first.pk
    first.save(update_fields=["array"])
    for job in rest:
        job.array = first.pk
    return [first, *Job.objects.bulk_create(rest, batch_size=500)]


def _columns(new: NewJob, owner: User, now: datetime) -> dict[str, Any]:
    asked, manners = new.requirement, new.manners
    return {
        "owner": owner,
        "name": new.label,
        "command": new.typed,
        "argv": list(new.executed),
        "cwd": new.cwd,
        "env": new.env,
        "priority": new.priority,
        "gpus": asked.gpus,
        "gpu_memory_bytes": asked.memory_bytes,
        "exclusive": asked.exclusive,
        "capability": "{}.{}".format(*asked.capability) if asked.capability else "",
        "gpu_model": asked.model,
        "power": asked.power,
        "gpu_uuid": asked.gpu_uuid,
        "share_pct": asked.share_pct,
        "cpus": new.cpus,
        "memory_bytes": new.memory_bytes,
        "preemptible": manners.preemptible,
        "requeue": manners.requeue,
        "yield_signal": manners.yield_signal,
        "grace_s": _seconds(manners.grace),
        "retries": manners.retries,
        "begin_at": new.begin_at,
        "array_limit": new.array_limit if new.array else None,
        "depends": bool(new.after),
        "estimate_s": _seconds(new.estimate),
        "time_limit_s": _seconds(new.time_limit),
        "submitted_at": now,
    }


def request_cancel(job_id: int, by: str, now: datetime) -> bool:
    """Cancel a waiting job at once, ask the runner of a started one to stop it.

    False when there was nothing to do: it has ended, or is being stopped already.
    """
    mark = {"cancel_requested_at": now, "cancelled_by": by}
    with synced(), transaction.atomic():
        job = Job.objects.filter(pk=job_id)
        if job.filter(state=JobState.QUEUED.value).update(
            state=JobState.FINISHED.value,
            outcome=Outcome.CANCELLED.value,
            ended_at=now,
            blockers=[],
            **mark,
        ):
            tallies.add(tallies.FINISHED_JOBS, Outcome.CANCELLED.value)
            events.add("JOB_FINISHED", f"{by} cancelled job {job_id}", now=now, job_ref=str(job_id))
            dependencies.skip_dependents(job_id, Outcome.CANCELLED, now)
        elif not job.filter(state__in=(JobState.STARTING.value, JobState.RUNNING.value)).update(
            state=JobState.STOPPING.value, **mark
        ):
            return False
        _wake_all()
    return True


def queue_mark() -> tuple[object, ...]:
    """Cheap to ask, and another one after a job came or went."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), SUM(id)" + _WAITING)
        return tuple(cursor.fetchone())


def waiting_ids() -> set[int]:
    """The numbers of all waiting jobs."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id" + _WAITING)
        return {id_ for (id_,) in cursor.fetchall()}


@contextmanager
def synced() -> Iterator[None]:
    """Make commits inside reach the disk before they return."""
    keep_commits_synced(on=True)
    try:
        yield
    finally:
        keep_commits_synced(on=False)


def keep_commits_synced(*, on: bool) -> None:
    """Whether this connection's commits survive a power cut (with PostgreSQL they always do)."""
    if connection.vendor == "sqlite" and not connection.in_atomic_block:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA synchronous={'FULL' if on else 'NORMAL'}")


def _wake_all() -> None:
    wake("scheduler")
    wake("live")


def _seconds(value: timedelta | None) -> int | None:
    return None if value is None else max(1, round(value.total_seconds()))
