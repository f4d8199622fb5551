"""Submit and cancel jobs. State changes by the scheduler loop are in transitions.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db import connection, transaction
from django.db.models import Q, QuerySet
from msgspec import Struct

from monitor.journal.rows import audit, counters, events
from monitor.runtime.rows.database import insert_row, keep_commits_synced
from monitor.runtime.rows.wakeups import wake
from scheduler.facts import job_fields
from scheduler.facts.jobs import JobState, NewJob, Outcome
from scheduler.jobs.rows import relations, transitions
from scheduler.jobs.rows.relations import chunks, locked, update
from scheduler.models import Job, JobInput


def submit(new: NewJob, owner: User, now: datetime, check: Callable[[], None] | None = None) -> Job:
    """Queue a job, or all jobs of an array; returns the (first) job. Durable on return."""
    return submit_all([new], owner, now, check)[0]


def submit_all(
    new: Sequence[NewJob],
    owner: User,
    now: datetime,
    check: Callable[[], None] | None = None,
    on_stored: Callable[[list[Job]], None] | None = None,
) -> list[Job]:
    """Queue jobs together, or none of them; returns them, of an array its first. Durable on return.

    `check` raises if the jobs are not admitted. It counts existing jobs in the same transaction.
    `on_stored` stores further rows of the jobs in that transaction.
    """
    with synced(), transaction.atomic(durable=True):
        if check is not None:
            check()
        created = _create_all(new, owner, now)
        jobs = [job for job, _ in created]
        relations.add_dependencies(
            [(numbers, new_job.after) for new_job, (_, numbers) in zip(new, created, strict=True)],
            now,
        )
        JobInput.objects.bulk_create(
            JobInput(
                job=job,
                data=new_job.stdin,
                environment=new_job.environment,
                size=new_job.input_size,
            )
            for new_job, job in zip(new, jobs, strict=True)
            if new_job.input_size
        )
        text = f"{owner.username} submitted {_title(created)}"
        first = str(jobs[0].pk)
        events.add("JOB_SUBMITTED", text, now=now, job_ref=first, owner=owner.username)
        if on_stored is not None:
            on_stored(jobs)
        _wake_all()
    return jobs


def add_within(new: NewJob, owner: User, now: datetime, **columns: object) -> Job:
    """Queue one job of gpucoord's own in the caller's transaction; columns: further ones."""
    job = Job(**_columns(new, owner, now), **columns)
    job.save(force_insert=True)
    text = f"{owner.username} submitted job {job.pk} ({job.name})"
    events.add("JOB_SUBMITTED", text, now=now, job_ref=str(job.pk), owner=owner.username)
    _wake_all()
    return job


def add_all(new: Sequence[NewJob], owner: User, now: datetime) -> list[Job]:
    """Queue single jobs of a batch, without events. The caller opens the transaction."""
    jobs = [job for job, _ in _create_all(new, owner, now)]
    JobInput.objects.bulk_create(
        JobInput(job=job, data=b"", environment=new_job.environment, size=new_job.input_size)
        for new_job, job in zip(new, jobs, strict=True)
        if new_job.environment
    )
    return jobs


def _title(created: Sequence[tuple[Job, list[int]]]) -> str:
    job, numbers = created[0]
    if len(created) > 1:
        total = sum(len(numbers) for _, numbers in created)
        return f"{total} jobs from {job.pk} on ({job.name})"
    subject = f"array {job.pk} of {len(numbers)} jobs" if job.array is not None else f"job {job.pk}"
    return f"{subject} ({job.name})"


def _create_all(new: Sequence[NewJob], owner: User, now: datetime) -> list[tuple[Job, list[int]]]:
    """Each job, or the first one of an array, and the numbers of all of them; in this order."""
    created: list[tuple[Job, list[int]]] = []
    for is_array, together in groupby(new, key=lambda new_job: bool(new_job.array)):
        if is_array:
            created += [_create_array(new_job, owner, now) for new_job in together]
        else:
            rows = [Job(**_columns(new_job, owner, now)) for new_job in together]
            jobs = [insert_row(rows[0])] if len(rows) == 1 else Job.objects.bulk_create(rows)
            created += [(job, [job.pk]) for job in jobs]
    return created


def _create_array(new: NewJob, owner: User, now: datetime) -> tuple[Job, list[int]]:
    job = Job(**_columns(new, owner, now), array_index=new.array[0])
    job.save(force_insert=True)
    job.array = job.pk
    job.save(update_fields=["array"])
    for chunk in chunks(new.array[1:]):
        _copy(job, chunk)
    return job, list(Job.objects.filter(array=job.pk).order_by("id").values_list("pk", flat=True))


def _copy(job: Job, indices: Sequence[int]) -> None:
    """Copy the row for each index in one statement: an array may have thousands of jobs."""
    fields = [f for f in Job._meta.concrete_fields if f.name not in ("id", "array_index")]
    columns = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    values = ", ".join(["(%s)"] * len(indices))
    statement = (
        f"INSERT INTO scheduler_job ({columns}, array_index)"  # noqa: S608 - no text of a user
        f" SELECT {columns}, element.column1 FROM scheduler_job, (VALUES {values}) AS element"
        " WHERE scheduler_job.id = %s ORDER BY element.column1"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [*indices, job.pk])


def _columns(new: NewJob, owner: User, now: datetime) -> dict[str, Any]:
    return job_fields.columns(new) | {
        "owner": owner,
        "name": new.label,
        "command": new.typed,
        "argv": list(new.executed),
        "task_type": new.task_type,
        "agent_id": new.agent,
        "env_names": sorted(new.env),
        "gpu_memory_is_learned": new.memory_is_learned,
        "array_limit": new.array_limit if new.array else None,
        "exclusive_batch": new.requirement.batch,
        "worker_batch": new.worker_batch,
        "depends": bool(new.after),
        "has_input": bool(new.stdin),
        "has_environment": bool(new.environment),
        "submitted_at": now,
    }


def request_cancel(job_id: int, by: str, now: datetime) -> bool:
    """Cancel a waiting job, or mark a started one as stopping.

    False when it has ended or is being stopped already.
    """
    mark = {"cancel_requested_at": now, "cancelled_by": by}
    with synced(), transaction.atomic():
        job = Job.objects.filter(pk=job_id)
        if job.filter(state=JobState.QUEUED.value).update(
            state=JobState.FINISHED.value,
            outcome=Outcome.CANCELLED.value,
            ended_at=now,
            blockers=[],
            env={},
            **mark,
        ):
            relations.forget_environments([job_id])
            counters.add(counters.FINISHED_JOBS, Outcome.CANCELLED.value)
            events.add("JOB_FINISHED", f"{by} cancelled job {job_id}", now=now, job_ref=str(job_id))
            relations.skip_dependents([job_id], Outcome.CANCELLED, now)
        elif not job.filter(state__in=(JobState.STARTING.value, JobState.RUNNING.value)).update(
            state=JobState.STOPPING.value, **mark
        ):
            return False
        _wake_all()
    return True


@contextmanager
def synced() -> Iterator[None]:
    """Make commits inside reach the disk before they return."""
    keep_commits_synced(on=True)
    try:
        yield
    finally:
        keep_commits_synced(on=False)


def _wake_all() -> None:
    wake("scheduler")
    wake("live")


# Cancel, hold, release or edit jobs, one or many at once.
#
# Each change is one transaction with one statement per 500 jobs, one event and one wake-up, so its
# cost hardly depends on the number of jobs. The caller has checked the permissions.


class Selection(Struct, frozen=True):
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
