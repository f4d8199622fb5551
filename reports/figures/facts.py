"""The figures of a report. Hours are GPU-hours unless stated; None is unknown, never zero."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct, field


# The period and the scope of a report.
class Period(Struct, frozen=True, kw_only=True):
    """From `since` up to but not including `until`, both in UTC and on whole minutes.

    name: "24h", "day", "custom"; label: "Last 24 hours"; zone: IANA name of the calendar's zone.
    """

    name: str
    label: str
    since: datetime
    until: datetime
    zone: str

    @property
    def seconds(self) -> float:
        return (self.until - self.since).total_seconds()

    @property
    def hours(self) -> float:
        return self.seconds / 3600


class ScopeKind(StrEnum):
    ALL = "all"
    USER = "user"
    GROUP = "group"
    GPU = "gpu"
    HOST = "host"


class Scope(Struct, frozen=True):
    """Subject of a report. `name` is "" for everything."""

    kind: ScopeKind = ScopeKind.ALL
    name: str = ""

    @property
    def text(self) -> str:
        """As it stands in the address: "all", "user:alice"."""
        return self.kind.value if self.kind is ScopeKind.ALL else f"{self.kind.value}:{self.name}"


class ReportRefused(Exception):
    """A report that can't be made: `field` of the request, and a sentence for the user."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field, self.text = field, text


# GPU-hours wasted of 100 allocated ones, at clusters with public job records.
YARDSTICKS: tuple[tuple[str, float], ...] = (
    ("MIT Supercloud", 66.0),
    ("Alibaba Helios", 79.0),
    ("Microsoft Philly", 50.0),
)


class GpuHours(Struct, frozen=True, kw_only=True):
    """capacity = used + idle_held + booked_empty + free + unknown.

    used: computing. idle_held: a process is there and the GPU does nothing. booked_empty: a job
    has booked it without a process on it. free: neither. unknown: not measured.
    """

    capacity: float = 0.0
    used: float = 0.0
    idle_held: float = 0.0
    booked_empty: float = 0.0
    free: float = 0.0
    unknown: float = 0.0

    @property
    def held(self) -> float:
        """Known time with a process or a booking."""
        return self.used + self.idle_held + self.booked_empty

    @property
    def parts(self) -> float:
        return self.held + self.free + self.unknown

    @property
    def coverage_pct(self) -> float | None:
        if not self.capacity:
            return None
        return 100 * max(0.0, self.capacity - self.unknown) / self.capacity

    @property
    def is_reconciled(self) -> bool:
        """Whether the parts add up to the capacity within 0.1 %."""
        return abs(self.parts - self.capacity) <= 0.001 * max(self.capacity, 1e-9)


class Costs(Struct, frozen=True, kw_only=True):
    """None: the price or the grid intensity is not set, or the energy is unknown."""

    energy: float | None = None
    gpu_time: float | None = None
    idle: float | None = None
    co2_kg: float | None = None
    currency: str = ""


class Totals(Struct, frozen=True, kw_only=True):
    """Of all GPUs of the scope. `people`: the part that the users of the report have.

    waited_hours: job-hours in the queue. waited_idle_hours: those during which GPUs were held
    without use (at most). energy_kwh includes idle_energy_kwh. used_before: GPU-hours of these
    users in the period before, None = it was not recorded.
    """

    gpus: int
    gpu_hours: GpuHours
    people: GpuHours
    waited_hours: float
    waited_idle_hours: float
    energy_kwh: float | None
    idle_energy_kwh: float | None
    costs: Costs
    used_before: float | None = None

    @property
    def per_100(self) -> tuple[float, float, float] | None:
        """Of 100 GPU-hours held: used, idle, booked but empty. None: nothing was held."""
        people = self.people
        if people.held <= 0:
            return None
        parts = (people.used, people.idle_held, people.booked_empty)
        used, idle, empty = (100 * part / people.held for part in parts)
        return used, idle, empty

    @property
    def whole_per_100(self) -> tuple[int, int, int] | None:
        """The same in whole numbers that add up to 100."""
        if self.per_100 is None:
            return None
        used, empty = round(self.per_100[0]), round(self.per_100[2])
        idle = max(0, 100 - used - empty)
        return 100 - idle - empty, idle, empty


class RightSize(Struct, frozen=True, kw_only=True):
    """Largest request of a user's finished jobs, their use, and the request that would do.

    gpus_used: mean GPUs in use of the jobs; a job's own peak counts for memory.
    """

    jobs: int
    gpus: int
    gpus_used: float
    gpus_advised: int
    memory_bytes: int | None
    peak_bytes: int | None
    advised_bytes: int | None
    text: str


class TrendPoint(Struct, frozen=True, kw_only=True):
    """One of the periods before, oldest first. efficiency: 0 to 1."""

    since: datetime
    used: float
    efficiency: float | None


class FindingFact(Struct, frozen=True, kw_only=True):
    """An incident of the user, with the address of its evidence."""

    incident: int
    rule: str
    title: str
    text: str
    since: datetime
    hours: float
    severity: str
    url: str
    user: str | None = None


class UserFigures(Struct, frozen=True, kw_only=True):
    """One user. `user` None: the owner is unknown. name: as the viewer may see it.

    held = used + idle_held + booked_empty + unknown: the user's part of the GPUs' time. Unused
    time of a GPU with several holders counts for those who used less than an equal part.
    efficiency: used of the known held time, 0 to 1. coverage: known of the held time, 0 to 1.
    share_pct: of the measured capacity. further_findings: how many are left out.
    caused_wait_hours: time that jobs of others would not have waited if the user had held only
    the entitlement.
    overuse_hours: hours above the own share while others waited.
    """

    user: str | None
    is_anonymous: bool = False
    held: float = 0.0
    used: float = 0.0
    idle_held: float = 0.0
    booked_empty: float = 0.0
    unknown: float = 0.0
    memory_gib_hours: float | None = None
    efficiency: float | None = None
    coverage: float | None = None
    share_pct: float | None = None
    entitled_pct: float | None = None
    target_pct: float | None = None
    overuse_hours: float = 0.0
    waited_hours: float = 0.0
    caused_wait_hours: float = 0.0
    energy_kwh: float | None = None
    idle_energy_kwh: float | None = None
    trend: tuple[TrendPoint, ...] = ()
    right_size: RightSize | None = None
    findings: tuple[FindingFact, ...] = ()
    further_findings: int = 0


class Violation(Struct, frozen=True, kw_only=True):
    """A process outside the queue that used a GPU heavily; of `heavy_use`, without harm to others.

    hours: at more than `above_pct` of a GPU; of a violation, while its owner was above the
    entitlement and a job waited that could have run there. processes: more than 1 for short ones
    together. waited_hours: the wait caused in these hours.
    """

    program: str
    pid: int | None
    user: str | None
    processes: int
    hours: float
    above_pct: float
    expected_pct: float
    mean_pct: float
    coverage: float
    waited_hours: float
    gpus: tuple[str, ...]
    url: str = ""
    is_anonymous: bool = False


class Recommendation(Struct, frozen=True, kw_only=True):
    """Advice for a finding. kind: contact, quota, window, right_size."""

    kind: str
    text: str
    user: str | None = None


class QueueFigures(Struct, frozen=True, kw_only=True):
    """Waits of the jobs of a class that started or still wait. Seconds; None: no job."""

    job_class: str
    jobs: int
    waiting: int
    p50_s: float | None
    p90_s: float | None
    blocker: str


class BlockerFigures(Struct, frozen=True, kw_only=True):
    """Waits of the jobs that waited for this blocker longest. Seconds, and job-hours."""

    blocker: str
    jobs: int
    p50_s: float | None
    p90_s: float | None
    waited_hours: float


class RuleCount(Struct, frozen=True, kw_only=True):
    rule: str
    title: str
    incidents: int
    hours: float
    waited_hours: float


class Operation(Struct, frozen=True, kw_only=True):
    """Measures of gpucoord. Hours of wall time, of the host with most."""

    defensive_hours: float = 0.0
    throttled_hours: float = 0.0
    deferrals: int = 0
    preemptions: int = 0
    evictions: int = 0


class Occupancy(Struct, frozen=True, kw_only=True):
    """One user's time on a GPU as the timeline draws it; used_pct None: unknown."""

    since: int
    until: int
    user: str | None
    used_pct: float | None
    is_anonymous: bool = False


class GpuFigures(Struct, frozen=True, kw_only=True):
    """One GPU. `marks`: (begin, title) of its incidents."""

    uuid: str
    name: str
    hours: GpuHours
    energy_kwh: float | None
    spans: tuple[Occupancy, ...] = ()
    marks: tuple[tuple[int, str], ...] = ()


class PatternFact(Struct, frozen=True, kw_only=True):
    user: str | None
    text: str


class Table(Struct, frozen=True, kw_only=True):
    """A table of a report. `head` has units; cells are texts, numbers or None for unknown."""

    key: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""


class Report(Struct, frozen=True, kw_only=True):
    """All figures of a report. heat: 7 x 24 used percent by weekday and hour of the zone.

    waits: (begin of an hour or day, job-hours waited). sections: of further subjects.
    """

    period: Period
    scope: Scope
    made_at: datetime
    totals: Totals
    coverage_pct: float | None
    least_coverage_pct: float
    users: tuple[UserFigures, ...] = ()
    violations: tuple[Violation, ...] = ()
    heavy_use: tuple[Violation, ...] = ()
    open_incidents: tuple[FindingFact, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    queue: tuple[QueueFigures, ...] = ()
    blockers: tuple[BlockerFigures, ...] = ()
    incidents: tuple[RuleCount, ...] = ()
    operation: Operation = field(default_factory=Operation)
    patterns: tuple[PatternFact, ...] = ()
    gpus: tuple[GpuFigures, ...] = ()
    heat: tuple[tuple[float | None, ...], ...] = ()
    waits: tuple[tuple[int, float], ...] = ()
    notes: tuple[str, ...] = ()
    sections: tuple[Table, ...] = ()
    url: str = ""

    @property
    def is_empty(self) -> bool:
        """No GPU was watched in the period."""
        hours = self.totals.gpu_hours
        return hours.capacity <= hours.unknown + 1e-9 and not self.users
