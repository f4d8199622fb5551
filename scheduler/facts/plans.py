"""Facts: input of the planner besides the queue, and its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from scheduler.facts.blockers import Blocker
from scheduler.facts.jobs import Ends, PriorityClass, QueuedJob, Requirement, RunTime
from scheduler.facts.people import UserAccount, Window


class Holder(Struct, frozen=True, kw_only=True):
    """A process that holds memory on a GPU and is not a job. memory_bytes: None = unknown.

    user: its owner, "" = unknown. pid: None = unknown, or a job's process.
    """

    name: str
    memory_bytes: int | None = None
    user: str = ""
    pid: int | None = None


class Slot(Struct, frozen=True, kw_only=True):
    """A GPU as input of the planner: free resources after foreign processes and claims.

    free_bytes: None = unknown, so no shared job may be placed on it. memory_unsupported: because
    the GPU or its driver has no such figure. failed_call: because this call of the driver failed.
    jobs: ids of the jobs on it. exclusive: one of them has it alone. undeclared: one of them
    declared no memory. foreign: other holders of memory, the largest first. growth_bytes: memory
    that is kept free for these, because they have held more before.
    lone: its compute mode allows only one process at a time.
    closed: blockers of all starts on a healthy GPU (a user is present, a lock, a quarantine).
    reserved_for: the job for which the GPU was freed. batch: a batch in exclusive mode, only whose
    jobs start here. model, capability, power: None = unknown.
    held_bytes: memory reserved by each of `jobs`, in their order. ramping: a job with a heavy start
    in progress, until `ramps_until` at most; meanwhile no job with `heavy_bytes` starts there.
    use_pct: recent use. unsettled: one of `jobs` is too young for its use to be measured.
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
    growth_bytes: int = 0
    model: str | None = None
    capability: tuple[int, int] | None = None
    power: float | None = None
    closed: tuple[Blocker, ...] = ()
    reserved_for: int | None = None
    batch: int | None = None
    held_bytes: tuple[int, ...] = ()
    ramping: int | None = None
    ramps_until: datetime | None = None
    heavy_bytes: int | None = None
    use_pct: float | None = None
    unsettled: bool = False
    memory_unsupported: bool = False
    failed_call: str | None = None

    @property
    def held_by_job(self) -> tuple[int, ...]:
        """Memory reserved by each of `jobs`, in their order; 0 = unknown."""
        return (*self.held_bytes, *[0] * (len(self.jobs) - len(self.held_bytes)))

    def without(self, job_ids: Collection[int]) -> Slot:
        """The GPU after these jobs have left it.

        Unknown memory of a job is not freed. While a job stays, the GPU stays exclusive or
        undeclared, because that job may be the reason.
        """
        pairs = tuple(zip(self.jobs, self.held_by_job, strict=True))
        stay = [pair for pair in pairs if pair[0] not in job_ids]
        if len(stay) == len(pairs):
            return self
        is_ramping = self.ramping is not None and self.ramping not in job_ids
        return replace(
            self,
            free_bytes=self._free_beside(pairs, stay),
            jobs=tuple(job for job, _ in stay),
            held_bytes=tuple(held_bytes for _, held_bytes in stay),
            exclusive=self.exclusive and bool(stay),
            undeclared=self.undeclared and bool(stay),
            ramping=self.ramping if is_ramping else None,
            ramps_until=self.ramps_until if is_ramping else None,
            unsettled=self.unsettled and bool(stay),
        )

    def without_processes(self, leaves: Callable[[Holder], bool]) -> Slot:
        """The GPU after these holders of memory have left it. Unknown memory is not freed."""
        freed = sum(holder.memory_bytes or 0 for holder in self.foreign if leaves(holder))
        free = None if self.free_bytes is None else self.free_bytes + freed
        stay = tuple(holder for holder in self.foreign if not leaves(holder))
        if stay or free is None:
            return replace(self, free_bytes=free, foreign=stay)
        return replace(self, free_bytes=free + self.growth_bytes, foreign=stay, growth_bytes=0)

    def _free_beside(
        self, before: Iterable[tuple[int, int]], stay: Iterable[tuple[int, int]]
    ) -> int | None:
        """Free memory when only the jobs of `stay` are left, without that of foreign processes."""
        if self.free_bytes is None:
            return None
        reserved = sum(part for _, part in stay)
        free = self.free_bytes + sum(part for _, part in before) - reserved
        if self.total_bytes is None:
            return free
        others = sum(holder.memory_bytes or 0 for holder in self.foreign)
        return max(0, min(free, self.total_bytes - others - reserved))


class RunningJob(Struct, frozen=True, kw_only=True):
    """A placed job that has not ended. lasts, typical, expected: as of QueuedJob.

    ends: its stored expected end; None = nothing is known of it, or it has just started.
    started_at: the placement, until it runs. yields: it was asked to yield or to end. idle_work: it
    comes from a template, and is the first to leave.
    """

    id: int
    owner: str
    priority: int
    requirement: Requirement
    gpu_uuids: tuple[str, ...]
    started_at: datetime
    lasts: timedelta | None = None
    typical: timedelta | None = None
    expected: RunTime | None = None
    ends: Ends | None = None
    preemptible: bool = False
    yields: bool = False
    idle_work: bool = False
    # Jobs of other classes preempt it at once.
    is_of_agent: bool = False

    @property
    def ends_at(self) -> datetime | None:
        """When it leaves its GPUs at the latest; None = unknown."""
        return None if self.lasts is None else self.started_at + self.lasts


class Throttle(Struct, frozen=True, kw_only=True):
    """Limits on starts, set by the controller.

    closed: blockers of a class (backpressure). closed_gpus: blockers of a class on a GPU, by UUID.
    starts: how many more jobs that are not user-initiated may start on GPUs; None = any. target:
    the reason for this limit. multipliers: by GPU, 0..1: factor on shares while other users load
    the GPU; no entry = 1, and 0 = not a GPU of this instance. reasons: why a GPU's multiplier is
    below 1; reason: the same for the host. saturated: GPUs that have been busy for so long that
    time windows override load. uses: recent use of GPUs in steps of 10 %, if known.
    """

    closed: Mapping[PriorityClass, Blocker] = field(default_factory=dict)
    closed_gpus: Mapping[PriorityClass, Mapping[str, Blocker]] = field(default_factory=dict)
    starts: int | None = None
    multipliers: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    saturated: frozenset[str] = frozenset()
    uses: Mapping[str, float] = field(default_factory=dict)


class Departure(Protocol):
    """Models that leave their GPUs for a waiting job. model_jobs: the jobs that they run as."""

    @property
    def job(self) -> QueuedJob: ...
    @property
    def model_jobs(self) -> tuple[int, ...]: ...
    @property
    def gpu_uuids(self) -> tuple[str, ...]: ...


class LoadedModels(Protocol):
    """The language models on a host, and the rules by which they leave for waiting jobs."""

    @property
    def leaving(self) -> tuple[int, ...]:
        """The jobs of models that are leaving now."""

    def decide(
        self,
        scripts: int,
        jobs: Sequence[QueuedJob],
        gpus: Sequence[Slot],
        fits: Callable[[QueuedJob, Slot], bool],
        now: datetime,
        gone: Collection[int] = (),
    ) -> Departure | None:
        """For the first of these jobs for which one leaves.

        scripts: number of waiting jobs with GPUs. gone: jobs of models that have left.
        """

    def free_from(self) -> Iterable[datetime]:
        """When each may leave at the earliest."""


class Slots(Struct, frozen=True, kw_only=True):
    """Resources of a host. blocker: why no job may start on its GPUs.

    cpu_jobs: number of jobs without a GPU that have not ended. people: accounts by user name; a
    missing user has no limits. windows: time windows of all users. reserved: the model for which a
    GPU is reserved, by UUID. left_to_others: jobs for which another host reserves GPUs.
    For forecasts only: models, and coming, the jobs that batches will make of their items.
    """

    host: str
    gpus: tuple[Slot, ...] = ()
    cpu_jobs: int = 0
    blocker: Blocker | None = None
    running: tuple[RunningJob, ...] = ()
    people: Mapping[str, UserAccount] = field(default_factory=dict)
    throttle: Throttle = field(default_factory=Throttle)
    windows: tuple[Window, ...] = ()
    reserved: Mapping[str, str] = field(default_factory=dict)
    left_to_others: frozenset[int] = frozenset()
    models: LoadedModels | None = None
    coming: tuple[QueuedJob, ...] = ()


class PlanPolicy(Struct, frozen=True, kw_only=True):
    """The planner's thresholds.

    `margin_bytes` of each GPU stay free. A shared job that declares no memory needs
    `undeclared_bytes`. More than `unlisted_bytes` used by no listed process is a holder.
    host_memory_bytes, host_cpus: what jobs may reserve of the host together; None = unknown, and
    nothing is reserved.
    """

    margin_bytes: int = 256 * 1024**2
    undeclared_bytes: int = 2 * 1024**3
    unlisted_bytes: int = 1024**3
    stale_after: timedelta = timedelta(seconds=10)
    cpu_jobs: int = 2
    host_memory_bytes: int | None = None
    host_cpus: float | None = None


class Placement(Struct, frozen=True, kw_only=True):
    """The GPUs that a job gets.

    requirement: what the job requested when it was planned; None = not compared at the commit.
    """

    job_id: int
    host: str
    gpu_uuids: tuple[str, ...] = ()
    requirement: Requirement | None = None


class Yield(Struct, frozen=True, kw_only=True):
    """A request to a running job to leave its GPUs. for_job: the job that needs them.

    gpu_uuids: the GPUs that are then reserved for that job. counts: towards the limit of requeues.
    deadline: time of SIGKILL; None = the job's own grace, at most `longest_grace`. spares_young:
    a job that has run for a short time has its grace too.
    """

    job_id: int
    code: str
    text: str
    for_job: int | None = None
    gpu_uuids: tuple[str, ...] = ()
    counts: bool = True
    deadline: datetime | None = None
    longest_grace: timedelta | None = None
    spares_young: bool = False


class Plan(Struct, frozen=True, kw_only=True):
    """The result of a planning pass; every job of the queue is placed or has blockers.

    preemptions: for a job of the queue. evictions: for the GPU's owner, or a window's end.
    reserved_for: the job with the backfill reservation.
    """

    placements: tuple[Placement, ...] = ()
    preemptions: tuple[Yield, ...] = ()
    evictions: tuple[Yield, ...] = ()
    reserved_for: int | None = None
    blockers: dict[int, tuple[Blocker, ...]] = field(default_factory=dict)
