"""Rows -> facts: how long jobs of an owner and a name usually run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from monitor.runtime.facts import TimedCache
from scheduler.facts.jobs import JobState, Outcome, RunTime
from scheduler.models import Attempt, Job
from scheduler.queue.planner.forecast.run_times import EndedJob, expected, history
from scheduler.queue.sizing.policy import HostRun, host_needs

# Enough to judge by, and quickly read.
NEWEST = 2000
MIN_JOBS = 3
JobName = tuple[str, str]
RequestKey = tuple[str, str, timedelta | None, timedelta | None]
REFRESH_AFTER = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class UsualDuration:
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
