"""Facts: what the planner is given besides the queue, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduler.blockers import Blocker
from scheduler.jobs import PriorityClass, Requirement
from scheduler.people import Standing, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds memory on a GPU outside our jobs. memory_bytes None = unknown."""

    name: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A GPU as the planner sees it: what is free after every foreign process and our own claims.

    free_bytes None = unknown: no shared job may be placed on it.
    `jobs`: ids of our jobs on it; `exclusive`: one of them has it alone; `undeclared`: one of
    them did not say how much memory it needs; `foreign`: who else holds memory there, most first.
    `lone`: its compute mode lets only one process compute there at a time.
    `closed`: why nothing at all may start on it now, though it is healthy (its owner is there, a
    lock, a quarantine). `kept_for`: the job for which what was freed there is kept. model,
    capability, power: None = unknown. `held_bytes`: what each of `jobs` keeps from others, in their
    order. `ramping`: one of them that has just started and will take much more, until `ramps_until`
    at most; meanwhile nothing that asks for `heavy_bytes` starts there. `use_pct`: how busy it has
    been lately; `unsettled`: one of `jobs` is so young that its part in that can't be seen yet.
    """

    gpu_uuid: str
    host: str
    index: int
    total_bytes: int | None
    free_bytes: int | None
    healthy: bool = True
    problem: str | None = None
    jobs: tuple[int, ...] = ()
    exclusive: bool = False
    undeclared: bool = False
    lone: bool = False
    foreign: tuple[Holder, ...] = ()
    model: str | None = None
    capability: tuple[int, int] | None = None
    power: float | None = None
    closed: tuple[Blocker, ...] = ()
    kept_for: int | None = None
    held_bytes: tuple[int, ...] = ()
    ramping: int | None = None
    ramps_until: datetime | None = None
    heavy_bytes: int | None = None
    use_pct: float | None = None
    unsettled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A placed job that has not ended. `lasts`, `typical`: as of a queued one; ends_at: by lasts.

    started_at is its placement until it runs. yields: it has been asked to yield, or to end.
    """

    id: int
    owner: str
    priority: int
    requirement: Requirement
    gpu_uuids: tuple[str, ...]
    started_at: datetime
    lasts: timedelta | None = None
    typical: timedelta | None = None
    preemptible: bool = False
    yields: bool = False

    @property
    def ends_at(self) -> datetime | None:
        """When its place is free at the latest; None = nobody can tell."""
        return None if self.lasts is None else self.started_at + self.lasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """What the controller allows now.

    `closed`: why no job of a class may start (backpressure); `closed_gpus`: why none of a class may
    start on a GPU, by its UUID. `starts`: how many more jobs that are not user-initiated may start
    on GPUs now; None = any; `target`: why no more. `multipliers`: by GPU, 0..1, what of it may be
    used beside others' load, hogs and the mode; a GPU that is not named counts as 1; 0 = not ours;
    `reason`: why they are below 1.
    `saturated`: the GPUs that have been busy for so long that an agreed time counts for more.
    `uses`: how busy GPUs have been lately, in steps of 10 %, where that is known.
    """

    closed: Mapping[PriorityClass, Blocker] = field(default_factory=dict)
    closed_gpus: Mapping[PriorityClass, Mapping[str, Blocker]] = field(default_factory=dict)
    starts: int | None = None
    multipliers: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    target: str = ""
    saturated: frozenset[str] = frozenset()
    uses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """What a host can give now. `blocker`: why no job at all may start on its GPUs.

    `cpu_jobs`: how many jobs without a GPU have not ended. `people`: by name; who is missing there
    has no limits. `windows`: everyone's agreed times.
    """

    host: str
    gpus: tuple[Slot, ...] = ()
    cpu_jobs: int = 0
    blocker: Blocker | None = None
    running: tuple[RunningJob, ...] = ()
    people: Mapping[str, Standing] = field(default_factory=dict)
    throttle: Throttle = field(default_factory=Throttle)
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPolicy:
    """The planner's thresholds.

    `margin_bytes` of each GPU stay free. A shared job that declares no memory needs
    `undeclared_bytes`. More than `unlisted_bytes` used by no listed process is a holder.
    """

    margin_bytes: int = 256 * 1024**2
    undeclared_bytes: int = 2 * 1024**3
    unlisted_bytes: int = 1024**3
    stale_after: timedelta = timedelta(seconds=10)
    cpu_jobs: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which GPUs a job gets: the contract between planning and acting."""

    job_id: int
    host: str
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Yield:
    """A running job that is asked to leave its GPUs, and why. `for_job`: whom it makes room for.

    gpu_uuids: the GPUs that are then kept for that job. counts: whether this is one of the times
    after which it is held. `deadline`: SIGKILL; None = its own grace from now.
    """

    job_id: int
    code: str
    text: str
    for_job: int | None = None
    gpu_uuids: tuple[str, ...] = ()
    counts: bool = True
    deadline: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one planning pass decided; every job of the queue is placed or has blockers.

    preemptions: for a job of the queue. evictions: for the GPU's owner, or a window's end.
    """

    placements: tuple[Placement, ...] = ()
    preemptions: tuple[Yield, ...] = ()
    evictions: tuple[Yield, ...] = ()
    blockers: dict[int, tuple[Blocker, ...]] = field(default_factory=dict)
