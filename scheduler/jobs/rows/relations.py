"""Rows: dependencies between jobs, and arrays.

A job is skipped when a dependency can never be met. A dependency on an array, named by the number
of its first job, waits for all its jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import BigIntegerField, Count, Exists, F, Max, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce
from msgspec import Struct

from monitor.journal.rows import counters, events
from monitor.runtime.rows.wakeups import wake
from scheduler.facts.jobs import Dependency, DependencyKind, JobState, Outcome
from scheduler.jobs.policy import (
    CrashGuard,
    EndedJob,
    last_lines,
    program,
    quick_series,
    reason,
)
from scheduler.models import Job, JobDependency, JobInput, NotificationSettings

# Statements for many jobs, in chunks that any database takes.

CHUNK = 500


def chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(ids), CHUNK):
        yield ids[at : at + CHUNK]


def update(ids: Sequence[int], **values: Any) -> None:
    """Set these columns of these jobs."""
    for chunk in chunks(ids):
        Job.objects.filter(pk__in=chunk).update(**values)


def forget_environments(ids: Sequence[int]) -> None:
    """Of ended jobs. Members of an array share one, which goes when the last of them has ended.

    Two last members may end at the same time on two hosts, unseen by each other; then it goes with
    the input of the array (job_files.forget).
    """
    open_members = Job.objects.filter(array=OuterRef("pk")).exclude(state=JobState.FINISHED.value)
    for chunk in chunks(ids):
        ended = Job.objects.filter(pk__in=chunk, has_environment=True)
        sharers = ended.annotate(
            first=Coalesce("array", "pk", output_field=BigIntegerField())
        ).values("first")
        inputs = JobInput.objects.filter(~Exists(open_members), pk__in=sharers)
        inputs.update(environment={})


def locked(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """These jobs in order; no other transaction changes them until the caller's ends."""
    return jobs.order_by("id").select_for_update(of=("self",))


# The number of the job that is waited for, and whether for its end or its success.
Awaited = tuple[int, DependencyKind]
_KINDS = {kind.value: kind for kind in DependencyKind}
# Of the ended jobs of an array, so many are named.
MOST_HOPELESS = 3
NOT_FAILED = ("", Outcome.SUCCEEDED.value)
OUTCOME_WORDS = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.TIMED_OUT: "ran into its time limit",
    Outcome.LOST: "was lost",
    Outcome.PREEMPTED: "had to leave its GPU",
    Outcome.SKIPPED: "was skipped itself",
}


def is_met(after: DependencyKind, state: str, outcome: str) -> bool:
    """Whether a job in this state meets such a dependency."""
    is_over = state == JobState.FINISHED.value
    return is_over and (after is DependencyKind.END or outcome == Outcome.SUCCEEDED.value)


def dependency_problems(wanted: Sequence[Sequence[Dependency]]) -> list[tuple[str, ...]]:
    """For each new job, why it can't wait for the jobs that it names; () = it can."""
    named = {dependency for after in wanted for dependency in after}
    if not named:
        return [()] * len(wanted)
    numbers = sorted({dependency.on for dependency in named})
    existing = {
        pk
        for chunk in chunks(numbers)
        for pk in Job.objects.filter(pk__in=chunk).values_list("pk", flat=True)
    }
    hopeless = _hopeless(
        {dependency.on for dependency in named if dependency.after is DependencyKind.SUCCESS}
    )
    return [_problems(after, existing, hopeless) for after in wanted]


def _problems(
    after: Sequence[Dependency], existing: set[int], hopeless: dict[int, list[str]]
) -> tuple[str, ...]:
    missing = [
        f"There is no job {dependency.on}." for dependency in after if dependency.on not in existing
    ]
    ended = [
        text
        for dependency in after
        if dependency.after is DependencyKind.SUCCESS
        for text in hopeless.get(dependency.on, ())
    ]
    return (*missing, *dict.fromkeys(ended[:MOST_HOPELESS]))


def _hopeless(numbers: Iterable[int]) -> dict[int, list[str]]:
    """{job or array: why it can't succeed any more}."""
    by_job: dict[int, list[str]] = {}
    wanted = sorted(numbers)
    for chunk in chunks(wanted):
        ended = _awaited(chunk).exclude(outcome__in=NOT_FAILED).order_by("pk")
        for pk, array, outcome in ended.values_list("pk", "array", "outcome"):
            text = f"Job {pk} {OUTCOME_WORDS[Outcome(outcome)]}: it can't succeed any more."
            for number in {pk, array or pk}:
                if len(by_job.setdefault(number, [])) < MOST_HOPELESS:
                    by_job[number].append(text)
    return by_job


def add_dependencies(
    waiting: Sequence[tuple[Sequence[int], Sequence[Dependency]]], now: datetime
) -> None:
    """Let new jobs wait for others; in the transaction in which they are submitted.

    waiting: (numbers of new jobs, what each of them waits for).
    """
    named = {dependency for _, after in waiting for dependency in after}
    if not named:
        return
    # None of these can end before the new rows are there to be skipped.
    numbers = sorted({dependency.on for dependency in named})
    awaited = [
        row
        for chunk in chunks(numbers)
        for row in locked(_awaited(chunk)).values_list("pk", "outcome")
    ]
    JobDependency.objects.bulk_create(
        (
            JobDependency(job_id=job, on_id=dependency.on, after=dependency.after.value)
            for jobs, after in waiting
            for job in jobs
            for dependency in _once(after)
        ),
        batch_size=1000,
    )
    if any(dependency.after is DependencyKind.SUCCESS for dependency in named):
        for outcome in {outcome for _, outcome in awaited} - set(NOT_FAILED):
            ended = [job for job, how in awaited if how == outcome]
            skip_dependents(ended, Outcome(outcome), now)


def skip_dependents(jobs: Sequence[int], outcome: Outcome, now: datetime) -> None:
    """End the waiting jobs that need the success of one of these, which ended with `outcome`.

    The jobs that need the success of a skipped one are skipped as well. Each level takes a few
    statements per 500 jobs, and one event for each job that ended first.
    """
    ended, how = list(jobs), outcome
    while ended:
        causes = _causes(ended)
        broken: dict[int, list[int]] = {}
        for job, on in _waiting_for(list(causes)):
            broken.setdefault(causes[on], []).append(job)
        ended = []
        for on, waiting in broken.items():
            ended += _skip(sorted(set(waiting) - set(ended)), on, how, now)
        how = Outcome.SKIPPED


def _causes(ended: Sequence[int]) -> dict[int, int]:
    """{number a job may wait for: the job that ended}; an array's first job stands for all."""
    causes = {job: job for job in ended}
    for chunk in chunks(ended):
        rows = Job.objects.filter(pk__in=chunk, array__isnull=False).order_by("pk")
        for job, array in rows.values_list("pk", "array"):
            if array is not None:
                causes.setdefault(array, job)
    return causes


def _waiting_for(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(waiting job, number whose success it needs)."""
    for chunk in chunks(numbers):
        rows = JobDependency.objects.filter(
            on_id__in=chunk, after=DependencyKind.SUCCESS.value, job__state=JobState.QUEUED.value
        )
        yield from rows.order_by("job_id", "on_id").values_list("job_id", "on_id")


def _awaited(numbers: Iterable[int]) -> QuerySet[Job]:
    """These jobs, and all others of the arrays that they stand for."""
    wanted = list(numbers)
    arrays = Job.objects.filter(pk__in=wanted, array=F("pk")).values("pk")
    return Job.objects.filter(Q(pk__in=wanted) | Q(array__in=arrays))


def _skip(jobs: Sequence[int], on: int, how: Outcome, now: datetime) -> list[int]:
    """Skip those of these that still wait; returns their numbers."""
    problem = f"It depends on the success of job {on}, which {OUTCOME_WORDS[how]}."
    rows = [
        row
        for chunk in chunks(jobs)
        for row in locked(Job.objects.filter(pk__in=chunk, state=JobState.QUEUED.value))
        .select_related("owner")
        .only("id", "name", "owner", "owner__username")
    ]
    if not rows:
        return []
    skipped = [job.pk for job in rows]
    update(
        skipped,
        state=JobState.FINISHED.value,
        outcome=Outcome.SKIPPED.value,
        problem=problem,
        ended_at=now,
        blockers=[],
        env={},
        held="",
        held_by="",
    )
    forget_environments(skipped)
    counters.add(counters.FINISHED_JOBS, Outcome.SKIPPED.value, len(skipped))
    _add_skipped_events(rows, problem, now)
    return skipped


def _add_skipped_events(jobs: Sequence[Job], problem: str, now: datetime) -> None:
    """One for each owner."""
    owners: dict[str, list[Job]] = {}
    for job in jobs:
        owners.setdefault(job.owner.username, []).append(job)
    for owner, skipped_jobs in owners.items():
        first, more = skipped_jobs[0], len(skipped_jobs) - 1
        others = f" and {more} other{'' if more == 1 else 's'}" if more else ""
        verb = "were" if more else "was"
        events.add(
            "JOB_FINISHED",
            f"Job {first.pk} ({first.name}){others} {verb} skipped: {problem}",
            now=now,
            severity="warning",
            job_ref=str(first.pk),
            owner=owner,
        )


def _once(after: Iterable[Dependency]) -> list[Dependency]:
    """One for each job: its success is more than its end."""
    unique: dict[int, Dependency] = {}
    for dependency in after:
        if dependency.on not in unique or dependency.after is DependencyKind.SUCCESS:
            unique[dependency.on] = dependency
    return list(unique.values())


class Array(Struct, frozen=True):
    """Progress of an array. first: the number of its first job, which identifies the array."""

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


def array_of(job: Job) -> Array | None:
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


def array_members(array: int) -> list[int]:
    """The jobs of an array, in order."""
    rows = Job.objects.filter(array=array).order_by("array_index")
    return list(rows.values_list("pk", flat=True))


def array_jobs(array: int) -> QuerySet[Job]:
    """The jobs of this array; scheduler.jobs.rows.changes changes them together."""
    return Job.objects.filter(array=array)


def element_states(array: int) -> list[dict[str, Any]]:
    """Where each of its jobs is, by index."""
    rows = array_jobs(array).order_by("array_index")
    columns = rows.values_list("pk", "array_index", "state", "outcome", "started_at")
    return [
        {
            "id": pk,
            "index": index,
            "state": state,
            "outcome": outcome or None,
            "has_started": started_at is not None,
        }
        for pk, index, state, outcome, started_at in columns
    ]


class UnmetDependencies:
    """The unmet dependencies of waiting jobs, kept from pass to pass.

    Dependencies are written with their job and never change, and one that is met stays met. So only
    those of new jobs are read, and the jobs that have ended since. `arrays`: the jobs that stand
    for their array. `unclear`: jobs with a dependency of an unknown kind.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[Awaited, ...]] = {}
        # The outcomes of awaited jobs that have ended.
        self._ended: dict[int, str] = {}
        self.arrays: frozenset[int] = frozenset()
        self.unclear: set[int] = set()

    def of(self, job: int) -> tuple[Awaited, ...]:
        """The unmet dependencies of a job, by the number of the job that is waited for."""
        return self._of.get(job, ())

    def refresh(self, jobs: Collection[int]) -> None:
        """`jobs`: the waiting jobs that have dependencies."""
        waiting = set(jobs)
        for gone in self._of.keys() - waiting:
            del self._of[gone]
        self.unclear &= waiting
        self._read(sorted(waiting - self._of.keys()))
        met = self._met({dependency for pending in self._of.values() for dependency in pending})
        for job, pending in self._of.items() if met else ():
            if not met.isdisjoint(pending):
                self._of[job] = tuple(dependency for dependency in pending if dependency not in met)

    def _read(self, jobs: Sequence[int]) -> None:
        awaited: dict[int, list[Awaited]] = {job: [] for job in jobs}
        arrays: set[int] = set()
        for chunk in chunks(jobs):
            rows = JobDependency.objects.filter(job_id__in=chunk).order_by("on_id")
            for job, on, after, array in rows.values_list("job_id", "on_id", "after", "on__array"):
                if array == on:
                    arrays.add(on)
                if after in _KINDS:
                    awaited[job].append((on, _KINDS[after]))
                else:
                    self.unclear.add(job)
        self._of |= {job: tuple(pending) for job, pending in awaited.items()}
        self.arrays |= arrays

    def _met(self, awaited: Collection[Awaited]) -> set[Awaited]:
        numbers = {on for on, _ in awaited}
        if not numbers:
            return set()
        self.arrays &= numbers
        self._ended = {on: outcome for on, outcome in self._ended.items() if on in numbers}
        still_open = Job.objects.exclude(state=JobState.FINISHED.value).order_by()
        numbers -= set(still_open.values_list("pk", flat=True)) | self.arrays | self._ended.keys()
        for chunk in chunks(sorted(numbers)):
            # The dependencies of a deleted job were deleted with it.
            self._ended |= dict.fromkeys(chunk, Outcome.SUCCEEDED.value)
            self._ended |= dict(Job.objects.filter(pk__in=chunk).values_list("pk", "outcome"))
        unmet = _unmet_of_arrays(self.arrays)
        over = JobState.FINISHED.value
        return {
            (on, after)
            for on, after in awaited
            if (
                after not in unmet.get(on, ())
                if on in self.arrays
                else on in self._ended and is_met(after, over, self._ended[on])
            )
        }


def _unmet_of_arrays(arrays: Collection[int]) -> dict[int, set[DependencyKind]]:
    """The kinds of dependency that some job of each array does not meet yet."""
    unmet: dict[int, set[DependencyKind]] = {}
    rows = Job.objects.filter(array__in=arrays).order_by() if arrays else Job.objects.none()
    for array, state, outcome in rows.values_list("array", "state", "outcome").distinct():
        if array is not None:
            kinds = {after for after in DependencyKind if not is_met(after, state, outcome)}
            unmet[array] = unmet.get(array, set()) | kinds
    return unmet


# Hold the further jobs of a program whose jobs fail in a row, if their owner wants it.


# Older jobs count neither as failures nor as further jobs.
CONSIDERED = timedelta(days=7)
ROWS_AT_ONCE = 20


def hold_alike(job: Job, tail: bytes, now: datetime) -> int:
    """Hold the waiting jobs like this one, an attempt of which has failed; returns their number.

    `tail` is the end of its log. Rows of waiting jobs are changed by compare-and-set.
    """
    guard = _guard_of(job)
    if guard is None or not _has_failed(job):
        return 0
    alike = _alike(job, now)
    series = quick_series(_ended(job, alike), guard)
    if not series:
        return 0
    waiting = [row.pk for row in _same_program(job, alike.filter(state=JobState.QUEUED.value))]
    # It is a wish of the owner, who may release them.
    columns = {
        "held": reason(series, guard),
        "held_by": job.owner.username,
        "held_log": last_lines(tail),
        "held_after": job.pk,
    }
    held = 0
    for chunk in chunks(waiting):
        still = Job.objects.filter(pk__in=chunk, state=JobState.QUEUED.value, held="")
        held += still.update(**columns)
    if held:
        noun = "job" if held == 1 else "jobs"
        events.add(
            "JOB_HELD",
            f"{held} waiting {noun} like job {job.pk} ({job.name}) held: {columns['held']}",
            now=now,
            severity="warning",
            job_ref=str(job.pk),
            owner=job.owner.username,
        )
        wake("scheduler")
        wake("live")
    return held


def _guard_of(job: Job) -> CrashGuard | None:
    """None: neither the job nor the settings of its owner say so."""
    chosen = NotificationSettings.objects.filter(user=job.owner_id).first()
    if not job.pause_on_quick_failure and not (chosen and chosen.pause_on_quick_failure):
        return None
    if chosen is None:
        return CrashGuard()
    return CrashGuard(chosen.quick_failures, timedelta(seconds=chosen.quick_failure_s))


def _has_failed(job: Job) -> bool:
    """False while it is tried again: a failure counts when no retries are left."""
    ended = Job.objects.filter(pk=job.pk, state=JobState.FINISHED.value)
    return ended.filter(outcome=Outcome.FAILED.value).exists()


def _alike(job: Job, now: datetime) -> QuerySet[Job]:
    same = Q(name=job.name, cwd=job.cwd)
    if job.array is not None:
        same |= Q(array=job.array)
    return Job.objects.filter(same, owner=job.owner_id, submitted_at__gte=now - CONSIDERED)


def _ended(job: Job, alike: QuerySet[Job]) -> Iterator[EndedJob]:
    """Newest first, since the last release: a release begins a new series."""
    ended = alike.filter(state=JobState.FINISHED.value, started_at__isnull=False)
    if released := alike.aggregate(at=Max("released_at"))["at"]:
        ended = ended.filter(ended_at__gt=released)
    for row in _same_program(job, ended.order_by("-ended_at", "-pk")):
        if row.started_at is not None and row.ended_at is not None:
            yield EndedJob(row.pk, row.outcome, row.started_at, row.ended_at)


def _same_program(job: Job, rows: QuerySet[Job]) -> Iterator[Job]:
    own = program(job.argv)
    needed = rows.only("pk", "argv", "array", "outcome", "started_at", "ended_at")
    for row in needed.iterator(chunk_size=ROWS_AT_ONCE):
        if program(row.argv) == own or (job.array is not None and row.array == job.array):
            yield row
