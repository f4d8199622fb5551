"""Demand: the GPUs that work would have used if each job had started at once.

A job counts from the moment at which it was eligible, for its run time: the load of a machine with
unlimited GPUs. Shared jobs count with the part of a GPU that their declared memory takes. GPUs that
processes outside jobs used are added as measured. Unmet demand is what exceeds the supply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from reports.capacity.facts import DemandHour, RecordedJob
from scheduler.facts.jobs import Requirement
from scheduler.limits.quotas.policy.quotas import held, memory

HOUR_S = 3600
HOUR = timedelta(hours=1)


def demand_hours(
    jobs: Iterable[RecordedJob],
    outside: Mapping[int, float],
    since: datetime,
    until: datetime,
    gpu_bytes: int | None,
) -> list[DemandHour]:
    """Each whole hour from `since` to `until`. outside: GPUs that other processes used, by hour."""
    first = -(-int(since.timestamp()) // HOUR_S)
    count = int(until.timestamp()) // HOUR_S - first
    if count <= 0:
        return []
    demand, waiting = _Sums(first, count), _Sums(first, count)
    for job in jobs:
        part = held(job.requirement, gpu_bytes)
        if not part:
            continue
        demand.add(job.eligible_at, job.eligible_at + job.run_time, part)
        waiting.add(job.eligible_at, until if job.started_at is None else job.started_at, part)
    return [
        DemandHour(
            t=t, demand=demand.mean(t) + outside.get(t, 0.0), waiting=max(0.0, waiting.mean(t))
        )
        for t in range(first * HOUR_S, (first + count) * HOUR_S, HOUR_S)
    ]


class _Sums:
    """GPU-seconds of each hour. Long spans cost two entries: only their edges are added."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count
        self._edges = [0.0] * (count + 1)
        # By how much the level rises at the beginning of an hour.
        self._steps = [0.0] * (count + 2)
        self._levels: list[float] | None = None

    def add(self, begin: datetime, end: datetime, part: float) -> None:
        low, high = self._first * HOUR_S, (self._first + self._count) * HOUR_S
        a = min(max(begin.timestamp(), low), high)
        b = min(max(end.timestamp(), low), high)
        if b <= a:
            return
        i, j = int(a // HOUR_S) - self._first, int(b // HOUR_S) - self._first
        # As if it filled all hours from the i-th to before the j-th, corrected at both edges.
        self._steps[i] += part
        self._steps[j] -= part
        self._edges[i] -= part * (a - (self._first + i) * HOUR_S)
        self._edges[j] += part * (b - (self._first + j) * HOUR_S)

    def mean(self, t: int) -> float:
        """The mean level of the hour that begins at `t`."""
        if self._levels is None:
            level, self._levels = 0.0, []
            for step in self._steps:
                level += step
                self._levels.append(level)
        i = t // HOUR_S - self._first
        return self._levels[i] + self._edges[i] / HOUR_S


def unmet_gpu_hours(hours: Iterable[DemandHour], supply: float) -> float:
    """GPU-hours of demand beyond `supply` GPUs."""
    return sum(max(0.0, hour.demand - supply) for hour in hours)


def daily_means(hours: Sequence[DemandHour]) -> list[tuple[int, float]]:
    """(number of the UTC day since 1970, mean demand in GPUs) of the days with all 24 hours."""
    days: dict[int, list[float]] = {}
    for hour in hours:
        days.setdefault(hour.t // 86_400, []).append(hour.demand)
    return [(day, sum(values) / 24) for day, values in sorted(days.items()) if len(values) == 24]


def requested(
    jobs: Iterable[tuple[Requirement, int]], gpu_bytes: int | None
) -> tuple[float, int | None]:
    """(GPUs, bytes of GPU memory) that so many jobs with each requirement take.

    Bytes are None if one does not declare its memory and the size of the GPUs is unknown.
    """
    counts = list(jobs)
    gpus = sum(count * held(requirement, gpu_bytes) for requirement, count in counts)
    if gpu_bytes is None and any(
        requirement.gpus and requirement.memory_bytes is None for requirement, _ in counts
    ):
        return gpus, None
    return gpus, sum(count * memory(requirement, gpu_bytes) for requirement, count in counts)
