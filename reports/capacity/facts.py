"""Figures of capacity planning: recorded work, and what follows from it. None = unknown."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from msgspec import Struct

from scheduler.facts.jobs import Dependency, Requirement

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
