"""Rows: jobs that wait for others; when what one waits for can never come, it is skipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from monitor import events, tallies
from scheduler.jobs import After, Dependency, JobState, Outcome
from scheduler.models import Job, JobDependency


def problems(after: Iterable[Dependency]) -> tuple[str, ...]:
    """Why a new job can't wait for these, in words; () = it can."""
    wanted = tuple(after)
    known = {job.pk: job for job in Job.objects.filter(pk__in={one.on for one in wanted})}
    return tuple(text for one in wanted if (text := _problem(one, known.get(one.on))))


def start(jobs: Iterable[Job], after: Sequence[Dependency], now: datetime) -> None:
    """Let new jobs wait for others; in the transaction in which they are submitted."""
    if not after:
        return
    # None of these can end before our rows are there to be skipped.
    awaited = Job.objects.select_for_update().filter(pk__in={one.on for one in after})
    hopeless = [job for job in awaited if job.outcome not in ("", Outcome.SUCCEEDED.value)]
    JobDependency.objects.bulk_create(
        (
            JobDependency(job=job, on_id=one.on, after=one.after.value)
            for job in jobs
            for one in _once(after)
        ),
        batch_size=1000,
    )
    for job in hopeless:
        skip_dependents(job.pk, Outcome(job.outcome), now)


def skip_dependents(job_id: int, outcome: Outcome, now: datetime) -> None:
    """A job has ended without success: who was to start after its success never will.

    They end with a reason that names it, and so do those that wait for them in turn.
    """
    ended = [(job_id, outcome)]
    while ended:
        on, how = ended.pop()
        waiting = JobDependency.objects.filter(
            on_id=on, after=After.SUCCESS.value, job__state=JobState.QUEUED.value
        )
        for job in Job.objects.filter(pk__in=waiting.values("job_id")).select_related("owner"):
            if _skip(job, on, how, now):
                ended.append((job.pk, Outcome.SKIPPED))


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


WORDS = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.TIMED_OUT: "ran into its time limit",
    Outcome.LOST: "was lost",
    Outcome.PREEMPTED: "had to leave its GPU",
    Outcome.SKIPPED: "was skipped itself",
    Outcome.SUCCEEDED: "succeeded",
}


def _problem(one: Dependency, on: Job | None) -> str:
    if on is None:
        return f"There is no job {one.on}."
    bad = on.outcome not in ("", Outcome.SUCCEEDED.value)
    if one.after is After.SUCCESS and bad:
        return f"Job {one.on} {WORDS[Outcome(on.outcome)]}: it can't succeed any more."
    return ""


def _once(after: Iterable[Dependency]) -> list[Dependency]:
    """One for each job: its success is more than its end."""
    found: dict[int, Dependency] = {}
    for one in after:
        if one.on not in found or one.after is After.SUCCESS:
            found[one.on] = one
    return list(found.values())
