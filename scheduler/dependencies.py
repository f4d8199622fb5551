"""Rows: jobs that wait for others; when what one waits for can never come, it is skipped.

Whoever names an array, by the number of its first job, waits for all of its jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db.models import F, Q, QuerySet

from monitor import events, tallies
from scheduler.jobs import After, Dependency, JobState, Outcome
from scheduler.models import Job, JobDependency

GOOD = ("", Outcome.SUCCEEDED.value)
WORDS = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.TIMED_OUT: "ran into its time limit",
    Outcome.LOST: "was lost",
    Outcome.PREEMPTED: "had to leave its GPU",
    Outcome.SKIPPED: "was skipped itself",
}


def is_met(after: After, state: str, outcome: str) -> bool:
    """Whether nobody need wait for a job any more that is like this."""
    is_over = state == JobState.FINISHED.value
    return is_over and (after is After.END or outcome == Outcome.SUCCEEDED.value)


def problems(after: Iterable[Dependency]) -> tuple[str, ...]:
    """Why a new job can't wait for these, in words; () = it can."""
    wanted = tuple(after)
    known = set(Job.objects.filter(pk__in={one.on for one in wanted}).values_list("pk", flat=True))
    missing = [f"There is no job {one.on}." for one in wanted if one.on not in known]
    successes = {one.on for one in wanted if one.after is After.SUCCESS}
    hopeless = [
        f"Job {job.pk} {WORDS[Outcome(job.outcome)]}: it can't succeed any more."
        for job in _awaited(successes).exclude(outcome__in=GOOD).order_by("pk")[:3]
    ]
    return (*missing, *hopeless)


def start(jobs: Sequence[Job], after: Sequence[Dependency], now: datetime) -> None:
    """Let new jobs wait for others; in the transaction in which they are submitted."""
    if not after:
        return
    # None of these can end before our rows are there to be skipped.
    awaited = list(_awaited({one.on for one in after}).select_for_update())
    JobDependency.objects.bulk_create(
        (
            JobDependency(job=job, on_id=one.on, after=one.after.value)
            for job in jobs
            for one in _once(after)
        ),
        batch_size=1000,
    )
    for other in awaited:
        if other.outcome not in GOOD:
            skip_dependents(other.pk, Outcome(other.outcome), now)


def skip_dependents(job_id: int, outcome: Outcome, now: datetime) -> None:
    """A job has ended without success: who was to start after its success never will.

    They end with a reason that names it, and so do those that wait for them in turn.
    """
    ended = [(job_id, outcome)]
    while ended:
        on, how = ended.pop()
        waiting = JobDependency.objects.filter(
            Q(on_id=on) | Q(on__array=F("on_id"), on_id__in=_array_of(on)),
            after=After.SUCCESS.value,
            job__state=JobState.QUEUED.value,
        )
        for job in Job.objects.filter(pk__in=waiting.values("job_id")).select_related("owner"):
            if _skip(job, on, how, now):
                ended.append((job.pk, Outcome.SKIPPED))


def _awaited(numbers: Iterable[int]) -> QuerySet[Job]:
    """These jobs, and all others of the arrays that they stand for."""
    wanted = list(numbers)
    arrays = Job.objects.filter(pk__in=wanted, array=F("pk")).values("pk")
    return Job.objects.filter(Q(pk__in=wanted) | Q(array__in=arrays))


def _array_of(job_id: int) -> list[int]:
    found = Job.objects.filter(pk=job_id, array__isnull=False)
    return [number for number in found.values_list("array", flat=True) if number is not None]


def _skip(job: Job, on: int, how: Outcome, now: datetime) -> bool:
    problem = f"It was to start after the success of job {on}, which {WORDS[how]}."
    moved = Job.objects.filter(pk=job.pk, state=JobState.QUEUED.value).update(
        state=JobState.FINISHED.value,
        outcome=Outcome.SKIPPED.value,
        problem=problem,
        ended_at=now,
        blockers=[],
        held="",
        held_by="",
    )
    if moved:
        tallies.add(tallies.FINISHED_JOBS, Outcome.SKIPPED.value)
        text = f"Job {job.pk} ({job.name}) was skipped: {problem}"
        events.add(
            "JOB_FINISHED",
            text,
            now=now,
            severity="warning",
            job_ref=str(job.pk),
            owner=job.owner.username,
        )
    return bool(moved)


def _once(after: Iterable[Dependency]) -> list[Dependency]:
    """One for each job: its success is more than its end."""
    found: dict[int, Dependency] = {}
    for one in after:
        if one.on not in found or one.after is After.SUCCESS:
            found[one.on] = one
    return list(found.values())
