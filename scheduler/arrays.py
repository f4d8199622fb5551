"""Rows: arrays of jobs: how far one is, and cancelling what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from scheduler import store
from scheduler.jobs import JobState, Outcome
from scheduler.models import Job


@dataclass(frozen=True, slots=True)
class Array:
    """An array as it stands. `first`: its first job, whose number is the array's."""

    first: int
    size: int
    waiting: int
    running: int
    succeeded: int
    limit: int | None

    @property
    def ended_badly(self) -> int:
        return self.size - self.waiting - self.running - self.succeeded

    @property
    def words(self) -> str:
        """ "3 of 10 succeeded, 2 run, 5 wait"."""
        parts = [f"{self.succeeded} of {self.size} succeeded"]
        if self.ended_badly:
            parts.append(f"{self.ended_badly} ended otherwise")
        if self.running:
            parts.append(f"{self.running} run{'' if self.running > 1 else 's'}")
        if self.waiting:
            parts.append(f"{self.waiting} wait{'' if self.waiting > 1 else 's'}")
        return ", ".join(parts)


def of(job: Job) -> Array | None:
    """The array that a job belongs to."""
    if job.array is None:
        return None
    rows = Job.objects.filter(array=job.array).values_list("state", "outcome")
    counts = {(state, outcome): n for state, outcome, n in rows.annotate(n=Count("id"))}
    return Array(
        first=job.array,
        size=sum(counts.values()),
        waiting=counts.get((JobState.QUEUED.value, ""), 0),
        running=sum(
            n
            for (state, outcome), n in counts.items()
            if not outcome and state != JobState.QUEUED.value
        ),
        succeeded=counts.get((JobState.FINISHED.value, Outcome.SUCCEEDED.value), 0),
        limit=job.array_limit,
    )


def members(job: Job) -> list[int] | None:
    """The jobs of its array, in order; None = it is a single one."""
    if job.array is None:
        return None
    rows = Job.objects.filter(array=job.array).order_by("array_index")
    return list(rows.values_list("pk", flat=True))


def cancel(array: int, by: str, now: datetime) -> int:
    """Cancel all of it that has not ended; how many that were. The last first, so that what
    waits does not start meanwhile."""
    rows = Job.objects.filter(array=array).exclude(state=JobState.FINISHED.value)
    ids = list(rows.order_by("-id").values_list("pk", flat=True))
    return sum(store.request_cancel(pk, by, now) for pk in ids)
