"""Demand: the GPUs that work would have used if each job had started at once.

A job counts from the moment at which it was eligible, for its run time: the load of a machine with
unlimited GPUs. Shared jobs count with the part of a GPU that their declared memory takes. GPUs that
processes outside jobs used are added as measured. Unmet demand is what exceeds the supply.

Percentiles of hourly means are over all hours, by hour of the week, and by month.
Nearest rank: the smallest value that at least so many percent of the hours do not exceed. A rank
needs as many hours as make it differ from the maximum: 2 for p50, 10 for p90, 20 for p95.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from math import ceil, sqrt
from statistics import NormalDist

from msgspec import Struct, field

from monitor.facts.thresholds import threshold
from scheduler.facts.jobs import Dependency, Requirement
from scheduler.facts.people import Budget, Capacity, Quota, UserAccount
from scheduler.facts.plans import RunningJob
from scheduler.limits.quotas.policy import charging, quotas
from scheduler.limits.quotas.policy.quotas import CATCH_UP, QuotaPolicy, held, memory

# (begin, end) of each.
Spans = tuple[tuple[datetime, datetime], ...]


class RecordedJob(Struct, frozen=True, kw_only=True):
    """A job of the past with its run time: the time that all its attempts held GPUs.

    started_at: its first placement; None = it still waits. is_assumed: it has not ended, and
    run_time is what such jobs usually take. lasts: the longest run time that the planner counts on.
    is_counted: its wait is part of the figures; others only hold GPUs. holds: when a user or an
    operator held it.
    """

    id: int
    owner: str
    priority: int
    submitted_at: datetime
    requirement: Requirement
    run_time: timedelta
    lasts: timedelta | None = None
    started_at: datetime | None = None
    begin_at: datetime | None = None
    after: tuple[Dependency, ...] = ()
    array: int | None = None
    array_limit: int | None = None
    preemptible: bool = False
    is_assumed: bool = False
    is_counted: bool = True
    holds: Spans = ()

    @property
    def eligible_at(self) -> datetime:
        """Before this it could not start, whatever was free; dependencies are not counted."""
        return self.submitted_at if self.begin_at is None else max(self.submitted_at, self.begin_at)


class CapacityGpu(Struct, frozen=True, kw_only=True):
    """A GPU of a host as it is today. memory_bytes, capability, power: None = unknown."""

    uuid: str
    host: str
    index: int
    model: str = ""
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    power: float | None = None


class GpuHourFigures(Struct, frozen=True, kw_only=True):
    """Means of one hour of one GPU. t: epoch seconds. joules: energy of the measured seconds."""

    gpu_uuid: str
    t: int
    utilisation_pct: float | None
    memory_bytes: float | None
    joules: float | None


class Percentiles(Struct, frozen=True, kw_only=True):
    """Nearest ranks of `count` hours; a rank that needs more hours is None."""

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None


class Profile(Struct, frozen=True, kw_only=True):
    """One figure over time. by_hour: 168 entries, Monday 00:00 first. by_month: "2026-03" first."""

    whole: Percentiles
    by_hour: tuple[Percentiles, ...]
    by_month: tuple[tuple[str, Percentiles], ...]


class GpuProfile(Struct, frozen=True, kw_only=True):
    """Utilisation in % and memory in bytes of one GPU, its idle hours and their energy.

    idle_hours: hours with a known mean utilisation below the idle limit, of known_hours.
    idle_kwh: None where the power of these hours is unknown.
    """

    gpu: CapacityGpu
    utilisation: Profile
    memory: Profile
    idle_hours: int
    known_hours: int
    idle_kwh: float | None


class DemandHour(Struct, frozen=True, kw_only=True):
    """One hour of a host, in GPUs. t: epoch seconds.

    demand: GPUs that work would have used if each job had started at once. waiting: GPUs that
    waiting jobs requested. Both are means of the hour.
    """

    t: int
    demand: float
    waiting: float


class Forecast(Struct, frozen=True, kw_only=True):
    """Mean daily demand in GPUs as a straight line with an 80 % prediction interval.

    points: (day, low, middle, high), one a week. reached: the days on which the upper bound, the
    line and the lower bound exceed the supply; None = not within the horizon. slope: GPUs a week.
    """

    days: int
    supply: int
    slope: float
    horizon: date
    points: tuple[tuple[date, float, float, float], ...]
    earliest: date | None
    reached: date | None
    latest: date | None


class ReplayFigures(Struct, frozen=True, kw_only=True):
    """Waits of replayed or recorded jobs in seconds. None = no such jobs.

    never: jobs that these GPUs can never start. waited_gpu_hours: GPUs × waiting time.
    """

    jobs: int
    p50_s: float | None
    p90_s: float | None
    waited_gpu_hours: float
    never: int = 0


class Alternative(Struct, frozen=True, kw_only=True):
    """Other hardware, and the replay with it; figures None = stopped at the time limit.

    slowest: the same if work on a part of a GPU takes longer in proportion to its compute slices.
    starts_now: waiting jobs that would start at once with it, None = not asked.
    """

    kind: str
    title: str
    figures: ReplayFigures | None
    slowest: ReplayFigures | None = None
    starts_now: int | None = None


HOUR_S = 3600


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


# Forecast of the mean daily demand: a straight line by least squares, with an 80 % interval.
#
# Textbook linear regression: the prediction interval of day x is ± t · s · √(1 + 1/n + (x −
# x̄)²/Sxx) with the residual standard error s of n days and the 90 % quantile t of the normal
# distribution (1.28; for the 14 days and more that are required, Student's t is at most 6 %
# larger). It assumes that growth goes on as it did and that days are independent. Weekends widen
# the interval.

# Two weeks: each weekday twice.
LEAST_DAYS = 14
# No further ahead than twice what was seen, and never more than a year.
HORIZON_FACTOR, LONGEST_HORIZON = 2, 365
INTERVAL = 0.8
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPolicy:
    """Capacity planning."""

    # fmt: off
    enabled: bool = threshold(True, "Capacity planning",
        "Percentiles, forecast and what-if replays, computed once a day, and their metrics.")
    # fmt: on


def forecast(days: Sequence[tuple[int, float]], supply: int) -> Forecast | None:
    """From (UTC day number, mean demand in GPUs); None = fewer days than LEAST_DAYS."""
    if len(days) < LEAST_DAYS:
        return None
    line = _Line(days)
    first = days[-1][0] + 1
    horizon = min(LONGEST_HORIZON, HORIZON_FACTOR * len(days))
    ahead = [(day, *line.at(day)) for day in range(first, first + horizon)]

    def exceeds(bound: int) -> date | None:
        day = next((row[0] for row in ahead if row[bound] > supply), None)
        return None if day is None else EPOCH + timedelta(days=day)

    shown = [*ahead[::7], *([ahead[-1]] if (len(ahead) - 1) % 7 else [])]
    return Forecast(
        days=len(days),
        supply=supply,
        slope=7 * line.slope,
        horizon=EPOCH + timedelta(days=ahead[-1][0]),
        points=tuple(
            (EPOCH + timedelta(days=day), low, mid, high) for day, low, mid, high in shown
        ),
        earliest=exceeds(3),
        reached=exceeds(2),
        latest=exceeds(1),
    )


class _Line:
    def __init__(self, days: Sequence[tuple[int, float]]) -> None:
        n = len(days)
        self._n = n
        self._mean_x = sum(x for x, _ in days) / n
        mean_y = sum(y for _, y in days) / n
        self._sxx = sum((x - self._mean_x) ** 2 for x, _ in days)
        sxy = sum((x - self._mean_x) * (y - mean_y) for x, y in days)
        self.slope = sxy / self._sxx
        self._base = mean_y - self.slope * self._mean_x
        squares = sum((y - self._base - self.slope * x) ** 2 for x, y in days)
        self._error = sqrt(max(0.0, squares) / (n - 2))
        self._z = NormalDist().inv_cdf((1 + INTERVAL) / 2)

    def at(self, x: int) -> tuple[float, float, float]:
        """(low, middle, high); never below 0 GPUs."""
        middle = self._base + self.slope * x
        far = (x - self._mean_x) ** 2 / self._sxx
        spread = self._z * self._error * sqrt(1 + 1 / self._n + far)
        return max(0.0, middle - spread), max(0.0, middle), max(0.0, middle + spread)


HOURS_OF_WEEK = 168
# Below this mean utilisation, an hour of a GPU counts as idle.
IDLE_PCT = 5.0
JOULES_PER_KWH = 3_600_000


def rank(ranked: Sequence[float], part: float) -> float | None:
    """The nearest rank of sorted values; None = there are none."""
    return ranked[max(0, ceil(part * len(ranked)) - 1)] if ranked else None


def percentiles(values: Iterable[float]) -> Percentiles:
    ranked = sorted(values)
    count = len(ranked)
    return Percentiles(
        count=count,
        p50=rank(ranked, 0.5) if count >= 2 else None,
        p90=rank(ranked, 0.9) if count >= 10 else None,
        p95=rank(ranked, 0.95) if count >= 20 else None,
    )


def profile(hours: Iterable[tuple[int, float | None]], zone: tzinfo) -> Profile:
    """Of (epoch seconds, mean of the hour); unknown hours are left out."""
    by_hour: list[list[float]] = [[] for _ in range(HOURS_OF_WEEK)]
    by_month: dict[str, list[float]] = {}
    values: list[float] = []
    for t, value in hours:
        if value is None:
            continue
        local = datetime.fromtimestamp(t, zone)
        by_hour[local.weekday() * 24 + local.hour].append(value)
        by_month.setdefault(f"{local:%Y-%m}", []).append(value)
        values.append(value)
    return Profile(
        whole=percentiles(values),
        by_hour=tuple(map(percentiles, by_hour)),
        by_month=tuple((month, percentiles(by_month[month])) for month in sorted(by_month)),
    )


def gpu_profile(gpu: CapacityGpu, hours: Sequence[GpuHourFigures], zone: tzinfo) -> GpuProfile:
    """Of the hours of this GPU."""
    measured = [hour for hour in hours if hour.utilisation_pct is not None]
    idle = [hour for hour in measured if (hour.utilisation_pct or 0.0) < IDLE_PCT]
    joules = [hour.joules for hour in idle if hour.joules is not None]
    # Some idle hours without power make the sum unknown, not smaller.
    is_known = len(joules) == len(idle) and bool(measured)
    return GpuProfile(
        gpu=gpu,
        utilisation=profile(((hour.t, hour.utilisation_pct) for hour in hours), zone),
        memory=profile(((hour.t, hour.memory_bytes) for hour in hours), zone),
        idle_hours=len(idle),
        known_hours=len(measured),
        idle_kwh=sum(joules) / JOULES_PER_KWH if is_known else None,
    )


def queue_profile(hours: Iterable[DemandHour], zone: tzinfo) -> Profile:
    """Of the GPUs that waiting jobs requested."""
    return profile(((hour.t, hour.waiting) for hour in hours), zone)


def fleet_hours(gpus: Sequence[Sequence[GpuHourFigures]]) -> list[GpuHourFigures]:
    """The mean GPU of each hour, of the GPUs that are known in it."""
    by_hour: dict[int, list[GpuHourFigures]] = {}
    for hours in gpus:
        for hour in hours:
            by_hour.setdefault(hour.t, []).append(hour)
    return [
        GpuHourFigures(
            gpu_uuid="",
            t=t,
            utilisation_pct=_mean(reading.utilisation_pct for reading in readings),
            memory_bytes=_mean(reading.memory_bytes for reading in readings),
            joules=None,
        )
        for t, readings in sorted(by_hour.items())
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


# Accounts of users on a replay's clock: past usage, daily budgets, target shares.


# GPUs that each user's processes outside jobs use from a moment on, oldest first.
OutsideUse = Sequence[tuple[datetime, Mapping[str, float]]]


class AccountInput(Struct, frozen=True, kw_only=True):
    """Facts about users. usage: decayed at the begin of the replay. zone: of daily budgets."""

    quotas: Mapping[str, Quota] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    outside: OutsideUse = ()
    zone: str = "UTC"


class Accounts:
    """Call `advance` before each change of the running jobs."""

    def __init__(self, given: AccountInput, capacity: Capacity, policy: QuotaPolicy) -> None:
        self._given, self._capacity, self._policy = given, capacity, policy
        self._usage = dict(given.usage)
        self._coming = list(reversed(given.outside))
        self._outside: Mapping[str, float] = {}
        self._spent_s: dict[str, float] = {}
        self._now: datetime | None = None

    def advance(self, now: datetime, running: Iterable[RunningJob]) -> None:
        """Charge what these jobs and the processes outside used since the last call."""
        since, jobs = self._now or now, self._held(running)
        for _, begin, end in charging.days(since, now, self._given.zone):
            if begin != since:
                self._spent_s = {}
            self._charge(jobs, (end - begin).total_seconds())
        if self._now is not None and charging.day(since, self._given.zone).until_at == now:
            self._spent_s = {}
        self._now = now
        while self._coming and self._coming[-1][0] <= now:
            _, self._outside = self._coming.pop()

    def _charge(self, jobs: Mapping[str, float], seconds: float) -> None:
        rates = {
            name: jobs.get(name, 0.0) + self._outside.get(name, 0.0)
            for name in {*jobs, *self._outside}
        }
        for name, rate in rates.items():
            self._spent_s[name] = self._spent_s.get(name, 0.0) + rate * seconds
        if gpus := len(self._capacity.gpu_uuids):
            parts = {name: rate / gpus for name, rate in rates.items()}
            half_life_s = self._policy.half_life_hours * 3600
            self._usage = charging.advance(self._usage, parts, seconds, half_life_s)

    def _held(self, running: Iterable[RunningJob]) -> dict[str, float]:
        """GPUs by owner."""
        gpus_by_owner: dict[str, float] = {}
        for job in running:
            part = quotas.held(job.requirement, self._capacity.gpu_bytes)
            gpus_by_owner[job.owner] = gpus_by_owner.get(job.owner, 0.0) + part
        return gpus_by_owner

    def of(
        self, waiting: Iterable[str], running: Sequence[RunningJob], now: datetime
    ) -> dict[str, UserAccount]:
        """Each user with work, with today's limits."""
        names = sorted({*waiting, *(job.owner for job in running)})
        limits = {name: self._given.quotas.get(name, Quota()) for name in names}
        weights = charging.weights({name: limits[name].share_pct for name in names})
        targets = charging.targets(weights, self._usage, CATCH_UP)
        mine: dict[str, list[RunningJob]] = {name: [] for name in names}
        for job in running:
            mine[job.owner].append(job)
        return {
            name: self._account(name, limits[name], weights[name], targets[name], mine[name], now)
            for name in names
        }

    def _account(
        self,
        name: str,
        quota: Quota,
        weight: float,
        target: float,
        jobs: Sequence[RunningJob],
        now: datetime,
    ) -> UserAccount:
        size = self._capacity.gpu_bytes
        held = sum(quotas.held(job.requirement, size) for job in jobs)
        return UserAccount(
            owner=name,
            quota=quota,
            weight=weight,
            usage=self._usage.get(name),
            target=target,
            gpus=sum(job.requirement.gpus for job in jobs),
            jobs=len(jobs),
            memory_bytes=sum(quotas.memory(job.requirement, size) for job in jobs),
            charge=held + self._outside.get(name, 0.0),
            capacity=self._capacity,
            budget=self._budget(name, quota, jobs, now),
        )

    def _budget(
        self, name: str, quota: Quota, jobs: Sequence[RunningJob], now: datetime
    ) -> Budget | None:
        if quota.gpu_minutes is None:
            return None
        lasts: list[tuple[float, timedelta | None]] = [
            (
                quotas.held(job.requirement, self._capacity.gpu_bytes),
                None if job.lasts is None else job.lasts - (now - job.started_at),
            )
            for job in jobs
        ]
        spent, zone = self._spent_s.get(name, 0.0) / 60, self._given.zone
        return charging.budget(quota.gpu_minutes, spent, lasts, charging.resets_at(now, zone), zone)
