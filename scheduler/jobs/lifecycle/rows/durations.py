"""Rows -> facts: how long jobs of an owner and a name usually run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from msgspec import Struct
from msgspec.structs import replace

from monitor.runtime.policy import TimedCache
from monitor.runtime.rows.database import compiled_once
from scheduler.facts.jobs import JobState, Outcome, RunTime
from scheduler.jobs.lifecycle.policy import LONGEST, PredictedStart, calibrations
from scheduler.models import Attempt, Job
from scheduler.queue.planner.forecast.classes import EndedJob, expected, history
from scheduler.queue.planner.forecast.forecast import Estimate
from scheduler.queue.sizing.policy import HostRun, host_needs

# Enough to judge by, and quickly read.
NEWEST = 2000
MIN_JOBS = 3
JobName = tuple[str, str]
RequestKey = tuple[str, str, timedelta | None, timedelta | None]
REFRESH_AFTER = timedelta(minutes=2)


class UsualDuration(Struct, frozen=True):
    """Median and 90th percentile of the run times of `count` jobs.

    memory_bytes, cpus: of the host, which the newest of them took; None = too few runs tell.
    """

    p50: timedelta
    p90: timedelta
    count: int
    memory_bytes: int | None = None
    cpus: float | None = None


class _EndedJobs:
    def __init__(self, ended: Sequence[EndedJob], runs: Mapping[JobName, list[HostRun]]) -> None:
        self.usual = _by_name(ended, runs)
        self.history = history(ended)
        # Many jobs are alike.
        self.expected: dict[RequestKey, RunTime] = {}


class Durations:
    """The run times of ended jobs, read every few minutes.

    Call it with an owner and a job's name; None = too few of them have ended.
    """

    def __init__(self) -> None:
        self._load = TimedCache(lambda now: _EndedJobs(_ended(), _runs()), REFRESH_AFTER)
        self._ended = _EndedJobs((), {})

    def refresh(self, now: datetime) -> None:
        self._ended = self._load(now)

    @property
    def version(self) -> object:
        """Another object once other jobs were read."""
        return self._ended

    def __call__(self, owner: str, name: str) -> UsualDuration | None:
        return self._ended.usual.get((owner, name))

    def expect(
        self, owner: str, name: str, limit: timedelta | None, estimate: timedelta | None
    ) -> RunTime:
        """How long such a job is expected to run."""
        key = (owner, name, limit, estimate)
        if key not in self._ended.expected:
            self._ended.expected[key] = expected(*key, self._ended.history)
        return self._ended.expected[key]


def _ended() -> list[EndedJob]:
    """The newest that ran to their own end, or to their limit."""
    over = (Outcome.SUCCEEDED.value, Outcome.TIMED_OUT.value)
    rows = Job.objects.filter(
        state=JobState.FINISHED.value, outcome__in=over, started_at__isnull=False
    ).order_by("-id")
    columns = ("owner__username", "name", "started_at", "ended_at", "time_limit_s", "estimate_s")
    return [
        EndedJob(
            owner=owner,
            name=name,
            took=max(timedelta(), ended - begun),
            limit=timedelta(seconds=limit) if limit else None,
            estimate=timedelta(seconds=estimate) if estimate else None,
        )
        for owner, name, begun, ended, limit, estimate in rows.values_list(*columns)[:NEWEST]
        if begun is not None and ended is not None
    ]


def _runs() -> dict[JobName, list[HostRun]]:
    """Use of the host by the newest successful attempts, newest first."""
    rows = Attempt.objects.filter(outcome=Outcome.SUCCEEDED.value, started_at__isnull=False)
    columns = ("job__owner__username", "job__name", "started_at", "ended_at")
    runs: dict[JobName, list[HostRun]] = defaultdict(list)
    used = rows.order_by("-id").values_list(*columns, "peak_memory_bytes", "cpu_s")
    for owner, name, begun, ended, peak, cpu_s in used[:NEWEST]:
        if begun is not None and ended is not None:
            took_s = (ended - begun).total_seconds()
            runs[owner, name].append(HostRun(took_s=took_s, peak_bytes=peak, cpu_s=cpu_s))
    return runs


def _by_name(
    ended: Iterable[EndedJob], runs: Mapping[JobName, list[HostRun]]
) -> dict[JobName, UsualDuration]:
    took: dict[JobName, list[timedelta]] = defaultdict(list)
    for job in ended:
        took[job.owner, job.name].append(job.took)
    usual = {}
    for key, times in took.items():
        if len(times) >= MIN_JOBS:
            memory_bytes, cpus = host_needs(runs.get(key, ()))
            usual[key] = replace(usual_duration(times), memory_bytes=memory_bytes, cpus=cpus)
    return usual


def usual_duration(times: list[timedelta]) -> UsualDuration:
    """The nearest ranks of at least one time."""
    ranked, count = sorted(times), len(times)
    return UsualDuration(ranked[(count - 1) // 2], ranked[-(-count * 9 // 10) - 1], count)


# The first and the latest predicted start of each waiting job, and how good they were.
#
# A short task computes them while jobs wait, so that a prediction exists for jobs whose page is
# never opened.

EVERY = timedelta(seconds=30)
# Jobs further back in the queue are predicted when they come nearer.
MOST_STORED = 200
# Smaller changes of a prediction are not written.
LEAST_CHANGE = timedelta(seconds=10)
# Attempts and ended jobs that are read to judge predictions.
MOST_READ = 2000
JUDGED_EVERY = timedelta(minutes=2)
FIELDS = ("first_predicted_start_at", "first_predicted_p90_at", "predicted_start_at")


def jobs_wait() -> bool:
    return bool(_first_waiting())


@compiled_once
def _first_waiting() -> QuerySet[Any, int]:
    return (
        Job.objects.filter(state=JobState.QUEUED.value).order_by().values_list("pk", flat=True)[:1]
    )


def store(estimates: Mapping[int, Estimate], now: datetime) -> int:
    """Store predictions of the first waiting jobs; returns how many rows changed."""
    upcoming = [
        (estimate.position or MOST_STORED, job_id)
        for job_id, estimate in estimates.items()
        if estimate.p50 is not None and estimate.p50 > now
    ]
    nearest = [job_id for _, job_id in sorted(upcoming)[:MOST_STORED]]
    rows = Job.objects.filter(pk__in=nearest, state=JobState.QUEUED.value).only("id", *FIELDS)
    changed = [job for job in rows if _update(job, estimates[job.pk])]
    return Job.objects.bulk_update(changed, FIELDS) if changed else 0


def _update(job: Job, estimate: Estimate) -> bool:
    if estimate.p50 is None:
        return False
    last = job.predicted_start_at
    if last is not None and abs(estimate.p50 - last) < LEAST_CHANGE:
        return False
    job.predicted_start_at = estimate.p50
    if job.first_predicted_start_at is None:
        job.first_predicted_start_at = estimate.p50
        job.first_predicted_p90_at = estimate.p90
    return True


def predicted_starts(now: datetime) -> list[PredictedStart]:
    """The first starts of predicted jobs in the last 30 days, of the newest attempts."""
    columns = ("job_id", "job__owner_id", "job__name", "job__submitted_at", "started_at")
    predicted = ("job__first_predicted_start_at", "job__first_predicted_p90_at")
    newest = Attempt.objects.order_by("-pk").values_list(*columns, *predicted)[:MOST_READ]
    first: dict[int, tuple[Any, ...]] = {}
    for job, *row in newest:
        # A later attempt of the job was read before.
        if row[3] is not None:
            first[job] = tuple(row)
    starts = [row for row in first.values() if row[4] is not None and now - row[3] <= LONGEST]
    ends = _ends_by_name({row[0] for row in starts})
    return [
        PredictedStart(started_at, p50, p90, bisect_left(ends.get((owner, name), []), submitted_at))
        for owner, name, submitted_at, started_at, p50, p90 in starts
    ]


def _ends_by_name(owners: Collection[int]) -> dict[tuple[int, str], list[datetime]]:
    """By owner and name: when runs that tell a run time ended, oldest first."""
    if not owners:
        return {}
    over = (Outcome.SUCCEEDED.value, Outcome.TIMED_OUT.value)
    rows = Job.objects.filter(owner__in=owners, outcome__in=over, started_at__isnull=False)
    ends: dict[tuple[int, str], list[datetime]] = {}
    for owner, name, ended_at in rows.order_by("-pk").values_list("owner", "name", "ended_at")[
        :MOST_READ
    ]:
        if ended_at is not None:
            insort(ends.setdefault((owner, name), []), ended_at)
    return ends


# Scrapes and viewers of the status page ask for it every few seconds.
calibration = TimedCache(lambda now: calibrations(predicted_starts(now), now), JUDGED_EVERY)
