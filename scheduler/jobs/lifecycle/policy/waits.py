"""Blockers that do not depend on GPUs: hold, begin time, back-off, dependency, array limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from statistics import median

from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import DependencyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Conditions of a waiting job. `held_by` "" = held by gpucoord.

    `refused`: why the last attempt could not start. `pending`: unmet dependencies; those in
    `arrays` refer to all jobs of an array.
    """

    id: int
    held: str = ""
    held_by: str = ""
    begin_at: datetime | None = None
    retry_at: datetime | None = None
    failures: int = 0
    refused: str = ""
    array: int | None = None
    array_limit: int | None = None
    pending: tuple[tuple[int, DependencyKind], ...] = ()
    arrays: frozenset[int] = frozenset()


def waits(
    conditions: Iterable[Condition],
    placed: Mapping[int, int],
    now: datetime,
    zone: str = "UTC",
) -> dict[int, tuple[Blocker, ...]]:
    """Blockers of the jobs that have some.

    `placed`: number of placed jobs of each array. The first ready jobs of an array take the places
    that its limit leaves, so job pass never starts more. `zone`: time zone of shown times.
    """
    blockers: dict[int, tuple[Blocker, ...]] = {}
    ready: dict[tuple[int, int], list[int]] = defaultdict(list)
    for job in conditions:
        if own := tuple(_own_blockers(job, now, zone)):
            blockers[job.id] = own
        elif job.array is not None and job.array_limit is not None:
            ready[job.array, job.array_limit].append(job.id)
    for (array, limit), ids in ready.items():
        reasons = (_array_limit(array, limit),)
        free = max(0, limit - placed.get(array, 0))
        blockers |= dict.fromkeys(sorted(ids)[free:], reasons)
    return blockers


def _own_blockers(job: Condition, now: datetime, zone: str) -> Iterable[Blocker]:
    if job.held:
        yield _held(job.held, job.held_by)
    if job.begin_at is not None and job.begin_at > now:
        yield _begins(job.begin_at, zone)
    if job.retry_at is not None and job.retry_at > now:
        yield _retries(job, job.retry_at, zone)
    for on, after in job.pending:
        yield _after(on, after, is_array=on in job.arrays)


def _held(reason: str, by: str) -> Blocker:
    code = BlockerCode.HELD if by else BlockerCode.TOO_MANY_REQUEUES
    facts = details(reason=reason)
    return Blocker(code=code, tier=Tier.PERSON, holder=by or None, details=facts)


def _array_limit(array: int, limit: int) -> Blocker:
    return Blocker(
        code=BlockerCode.ARRAY_LIMIT,
        tier=Tier.NOT_YET,
        array=array,
        requested="1 place",
        available=f"0 of {limit}",
        details=details(limit=limit),
    )


def _begins(at: datetime, zone: str) -> Blocker:
    return Blocker(
        code=BlockerCode.BEGIN_TIME,
        tier=Tier.NOT_YET,
        requested=at.isoformat(timespec="seconds"),
        until=at,
        details=details(zone=zone),
    )


def _retries(job: Condition, at: datetime, zone: str) -> Blocker:
    return Blocker(
        code=BlockerCode.BACKOFF,
        tier=Tier.NOT_YET,
        requested=at.isoformat(timespec="seconds"),
        until=at,
        details=details(failures=job.failures, refused=job.refused, zone=zone),
    )


@lru_cache(maxsize=100_000)
def _after(on: int, after: DependencyKind, *, is_array: bool) -> Blocker:
    return Blocker(
        code=BlockerCode.DEPENDENCY,
        tier=Tier.NOT_YET,
        array=on if is_array else None,
        jobs=() if is_array else (on,),
        requested=after.value,
    )


# How good the first predictions of starts were, by the runs known when they were made.


# From this number of runs on, their spread is known.
ENOUGH_RUNS = 5
PERIODS = {"24h": timedelta(hours=24), "30d": timedelta(days=30)}
LONGEST = max(PERIODS.values())


class RunsKnown(StrEnum):
    """How many earlier runs of the same owner and name a prediction could use."""

    NONE = "none"
    FEW = "few"
    ENOUGH = "enough"

    @classmethod
    def of(cls, runs: int) -> RunsKnown:
        if not runs:
            return cls.NONE
        return cls.FEW if runs < ENOUGH_RUNS else cls.ENOUGH


@dataclass(frozen=True, slots=True)
class PredictedStart:
    """The start of a job, and its first prediction. p90: None = it had only a median.

    runs: earlier runs of the same owner and name when the job was submitted.
    """

    started_at: datetime
    p50: datetime
    p90: datetime | None
    runs: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Predictions of the starts in a period. error: median of the difference to p50.

    before_p90: part of the starts before it, 0..1. None: no such start.
    """

    period: str
    runs: RunsKnown
    starts: int
    error: timedelta | None
    before_p90: float | None


def calibrations(starts: Iterable[PredictedStart], now: datetime) -> list[Calibration]:
    """By the number of known runs and by period."""
    past = [(RunsKnown.of(start.runs), start) for start in starts]
    return [
        _calibration(
            period, runs, [s for kind, s in past if kind is runs and now - s.started_at <= length]
        )
        for runs in RunsKnown
        for period, length in PERIODS.items()
    ]


def _calibration(period: str, runs: RunsKnown, starts: list[PredictedStart]) -> Calibration:
    errors = [abs(start.started_at - start.p50).total_seconds() for start in starts]
    is_before = [start.started_at <= start.p90 for start in starts if start.p90 is not None]
    return Calibration(
        period=period,
        runs=runs,
        starts=len(starts),
        error=timedelta(seconds=median(errors)) if errors else None,
        before_p90=sum(is_before) / len(is_before) if is_before else None,
    )
