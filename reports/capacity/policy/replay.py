"""Replay of recorded jobs through the planner on a simulated clock.

The clock jumps from event to event: a job becomes eligible or ends, or an hour has passed while
jobs wait. After each event the planner plans, and its placements start at once.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.formats import GIB
from monitor.gpus.policy import capability
from reports.capacity.policy.demand import (
    AccountInput,
    Accounts,
    CapacityGpu,
    RecordedJob,
    ReplayFigures,
    Spans,
    rank,
)
from scheduler.facts.blockers import Blocker, BlockerCode
from scheduler.facts.jobs import DependencyKind, PriorityClass, QueuedJob
from scheduler.facts.people import Capacity, Window
from scheduler.facts.plans import Holder, PlanPolicy, RunningJob, Slot, Slots, Throttle, Yield
from scheduler.queue.planner import placement
from scheduler.queue.planner.gates import PlannerThresholds
from scheduler.queue.planner.plan import plan

OTHERS = "other processes"
HELD_BACK = Blocker(code=BlockerCode.PRESSURE)
# Time windows open and close, and memory of others changes, without a job that starts or ends.
TICK = timedelta(hours=1)
# Weekly windows have all been open by then: what has not started cannot start.
MOST_TICKS = 7 * 24
# A replay of the unchanged machine that is further off from the record supports no advice.
MOST_OFF = 0.15
# (epoch seconds, memory that processes outside jobs hold on a GPU from then on, by UUID).
ForeignMemory = Sequence[tuple[datetime, Mapping[str, int]]]


class ReplayInput(Struct, frozen=True, kw_only=True):
    """Input of a replay besides the GPUs. slowness: by GPU, the factor of run times.

    held_back: when no job of a class could start because of the load.
    """

    jobs: tuple[RecordedJob, ...]
    foreign: ForeignMemory = ()
    accounts: AccountInput = field(default_factory=AccountInput)
    held_back: Mapping[PriorityClass, Spans] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    policy: PlanPolicy = field(default_factory=PlanPolicy)
    rules: PlannerThresholds = field(default_factory=PlannerThresholds)
    slowness: Mapping[str, float] = field(default_factory=dict)


class _Run(Struct):
    """A job that runs in the replay."""

    job: RecordedJob
    facts: RunningJob
    ends_at: datetime


class Replay:
    """Call `advance` until it returns False, then read `figures`."""

    def __init__(self, given: ReplayInput, gpus: Sequence[CapacityGpu]) -> None:
        self._given = given
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._jobs = {job.id: job for job in given.jobs}
        self._rest = {job.id: job.run_time for job in given.jobs}
        self._coming = sorted(given.jobs, key=lambda job: (job.eligible_at, job.id), reverse=True)
        self._foreign = list(reversed(given.foreign))
        self._held: Mapping[str, int] = {}
        self._waiting: dict[int, RecordedJob] = {}
        self._running: dict[int, _Run] = {}
        self._ends: list[tuple[datetime, int]] = []
        self._ended: dict[int, datetime] = {}
        self._kept: dict[str, int] = {}
        self._slots = {uuid: self._empty(gpu) for uuid, gpu in self._gpus.items()}
        self._starts: dict[int, datetime] = {}
        self._accounts = Accounts(given.accounts, _capacity(gpus), given.rules.quotas)
        # Ends of holds and of times of load: a job may start then.
        self._changes = sorted(_ends_of(given), reverse=True)
        self._now: datetime | None = None
        self._ticks = 0

    def advance(self) -> bool:
        """Go on to the next event and plan; False = nothing can happen any more."""
        now = self._next()
        if now is None:
            return False
        self._accounts.advance(now, [run.facts for run in self._running.values()])
        self._now = now
        while self._changes and self._changes[-1] <= now:
            self._changes.pop()
        started = len(self._starts)
        self._end_jobs(now)
        self._change_foreign(now)
        while self._coming and self._coming[-1].eligible_at <= now:
            job = self._coming.pop()
            self._waiting[job.id] = job
        if self._waiting:
            self._plan(now)
        self._ticks = 0 if len(self._starts) > started else self._ticks + 1
        return self._next() is not None

    def _next(self) -> datetime | None:
        times = []
        if self._coming:
            times.append(self._coming[-1].eligible_at)
        if self._ends:
            times.append(self._ends[0][0])
        if self._now is not None and self._waiting and (times or self._ticks < MOST_TICKS):
            times.append(self._now + TICK)
            if self._changes:
                times.append(self._changes[-1])
        return min(times, default=None)

    def _end_jobs(self, now: datetime) -> None:
        while self._ends and self._ends[0][0] <= now:
            at, id_ = heapq.heappop(self._ends)
            run = self._running.get(id_)
            # It may have been preempted and started again since.
            if run is not None and run.ends_at == at:
                self._ended[id_] = at
                self._leave(run)

    def _leave(self, run: _Run) -> None:
        del self._running[run.job.id]
        for uuid in run.facts.gpu_uuids:
            self._fill(uuid)

    def _change_foreign(self, now: datetime) -> None:
        changed = False
        while self._foreign and self._foreign[-1][0] <= now:
            _, self._held = self._foreign.pop()
            changed = True
        for uuid in self._gpus if changed else ():
            self._fill(uuid)

    def _empty(self, gpu: CapacityGpu) -> Slot:
        held, total = self._held.get(gpu.uuid, 0), gpu.memory_bytes
        free = None if total is None else max(0, total - held - self._given.policy.margin_bytes)
        return Slot(
            gpu_uuid=gpu.uuid,
            host=gpu.host,
            index=gpu.index,
            total_bytes=total,
            free_bytes=free,
            model=gpu.model,
            capability=gpu.capability,
            power=gpu.power,
            foreign=(Holder(name=OTHERS, memory_bytes=held),) if held else (),
            reserved_for=self._kept.get(gpu.uuid),
        )

    def _fill(self, uuid: str) -> None:
        """The GPU with the memory of others and the jobs that are on it now."""
        slot = self._empty(self._gpus[uuid])
        for run in self._running.values():
            if uuid in run.facts.gpu_uuids:
                slot = placement.after_placement(slot, run.job.id, run.job.requirement)
        self._slots[uuid] = replace(slot, ramping=None, unsettled=False)

    def _plan(self, now: datetime, *, is_second: bool = False) -> None:
        """Start what fits. What was preempted leaves at once, for a second plan."""
        queue = [self._queued(job) for job in self._ready(now)]
        if not queue:
            return
        running = tuple(run.facts for run in self._running.values())
        slots = Slots(
            host=next((gpu.host for gpu in self._gpus.values()), ""),
            gpus=tuple(self._slots.values()),
            cpu_jobs=sum(running_job.requirement.gpus == 0 for running_job in running),
            running=running,
            people=self._accounts.of({job.owner for job in queue}, running, now),
            throttle=self._throttle(now),
            windows=self._given.windows,
        )
        made = plan(queue, slots, self._given.policy, now, self._given.rules)
        for placed in made.placements:
            self._start(placed.job_id, placed.gpu_uuids, now)
        yields = [*made.evictions, *made.preemptions]
        if yields and not is_second:
            for wish in yields:
                self._preempt(wish, now)
            self._plan(now, is_second=True)
            freed, self._kept = self._kept, {}
            for uuid in freed:
                self._fill(uuid)

    def _throttle(self, now: datetime) -> Throttle:
        spans = self._given.held_back
        return Throttle(
            closed={
                kind: HELD_BACK
                for kind, times in spans.items()
                if any(begin <= now < end for begin, end in times)
            }
        )

    def _ready(self, now: datetime) -> list[RecordedJob]:
        """The waiting jobs whose holds, dependencies and array limits let them start."""
        places = Counter(run.job.array for run in self._running.values())
        ready = []
        for job in sorted(self._waiting.values(), key=lambda job: job.id):
            if any(begin <= now < end for begin, end in job.holds):
                continue
            if not all(self._is_over(dependency.on, dependency.after) for dependency in job.after):
                continue
            if job.array is not None and job.array_limit is not None:
                if places[job.array] >= job.array_limit:
                    continue
                places[job.array] += 1
            ready.append(job)
        return ready

    def _is_over(self, job_id: int, kind: DependencyKind) -> bool:
        """Jobs that are not part of the replay count as ended; all ends count as successes."""
        del kind
        return job_id in self._ended or job_id not in self._jobs

    def _queued(self, job: RecordedJob) -> QueuedJob:
        return QueuedJob(
            id=job.id,
            owner=job.owner,
            priority=job.priority,
            submitted_at=job.submitted_at,
            requirement=job.requirement,
            time_limit=job.lasts,
            preemptible=job.preemptible,
        )

    def _start(self, job_id: int, gpu_uuids: tuple[str, ...], now: datetime) -> None:
        job = self._waiting.pop(job_id)
        self._starts.setdefault(job_id, now)
        slowness = max((self._given.slowness.get(uuid, 1.0) for uuid in gpu_uuids), default=1.0)
        ends_at = now + self._rest[job_id] * slowness
        facts = RunningJob(
            id=job_id,
            owner=job.owner,
            priority=job.priority,
            requirement=job.requirement,
            gpu_uuids=gpu_uuids,
            started_at=now,
            lasts=job.lasts,
            preemptible=job.preemptible,
        )
        self._running[job_id] = _Run(job, facts, ends_at)
        heapq.heappush(self._ends, (ends_at, job_id))
        for uuid in gpu_uuids:
            self._kept.pop(uuid, None)
            self._fill(uuid)

    def _preempt(self, wish: Yield, now: datetime) -> None:
        """It leaves at once and waits again for the rest of its run time."""
        run = self._running.get(wish.job_id)
        if run is None:
            return
        self._rest[run.job.id] = run.ends_at - now
        if wish.for_job in self._waiting:
            self._kept |= dict.fromkeys(wish.gpu_uuids, wish.for_job)
        self._waiting[run.job.id] = run.job
        self._leave(run)
        for uuid in wish.gpu_uuids:
            self._fill(uuid)

    @property
    def starts(self) -> Mapping[int, datetime]:
        """The first start of each job so far."""
        return self._starts

    def figures(self) -> ReplayFigures:
        """The waits from the moment at which each job was eligible to its first start."""
        return wait_figures(
            self._jobs.values(),
            self._starts,
            self._ended,
        )


def wait_figures(
    jobs: Iterable[RecordedJob], starts: Mapping[int, datetime], ends: Mapping[int, datetime]
) -> ReplayFigures:
    """Waits of the counted jobs. A wait begins when the dependencies have ended."""
    waits, gpu_s, never = [], 0.0, 0
    for job in jobs:
        if not job.is_counted:
            continue
        if job.id not in starts:
            never += 1
            continue
        since = max([job.eligible_at, *(ends[link.on] for link in job.after if link.on in ends)])
        wait = max(timedelta(), starts[job.id] - since).total_seconds()
        waits.append(wait)
        gpu_s += wait * job.requirement.gpus
    waits.sort()
    return ReplayFigures(
        jobs=len(waits),
        p50_s=rank(waits, 0.5),
        p90_s=rank(waits, 0.9),
        waited_gpu_hours=gpu_s / 3600,
        never=never,
    )


def _ends_of(given: ReplayInput) -> Iterator[datetime]:
    for times in (*given.held_back.values(), *(job.holds for job in given.jobs)):
        yield from (end for _, end in times)


def _capacity(gpus: Sequence[CapacityGpu]) -> Capacity:
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes]
    mean = sum(sizes) // len(sizes) if sizes else None
    return Capacity(gpu_uuids=tuple(gpu.uuid for gpu in gpus), gpu_bytes=mean)


def deviation(recorded: float, replayed: float) -> float:
    """How far the replayed GPU-hours of waiting are off, as a part of the recorded ones."""
    if not recorded:
        return 0.0 if replayed < 1e-9 else float("inf")
    return abs(replayed - recorded) / recorded


# Other hardware to replay with: one GPU more or less, or a GPU split into MIG instances.
#
# MIG layouts and slices are those of NVIDIA's MIG user guide. A slice's memory is its part of the
# GPU's memory less about 3 % that the driver keeps.

# Compute slices and memory slices of the whole GPU, by model.
MIG_MODELS = {
    "A30": (4, 4),
    "A100": (7, 8),
    "H100": (7, 8),
    "H200": (7, 8),
    "B200": (7, 8),
}
# (compute slices, memory slices) of each instance.
LAYOUTS: dict[int, tuple[tuple[tuple[int, int], ...], ...]] = {
    4: (((2, 2), (2, 2)), ((1, 1),) * 4),
    7: (((4, 4), (3, 4)), ((2, 2), (2, 2), (3, 4)), ((1, 1),) * 7),
}
USABLE = 0.97
# More kinds of GPUs than these are not tried.
MOST_KINDS = 4
NEW = "what-if"


class Change(Struct, frozen=True, kw_only=True):
    """GPUs as they might be. slowness: by GPU, how much longer work takes at worst."""

    kind: str
    title: str
    gpus: tuple[CapacityGpu, ...]
    slowness: dict[str, float]
    replaced: str = ""


def changes(gpus: Sequence[CapacityGpu]) -> list[Change]:
    """One GPU more and one less of each model, and each MIG layout of one GPU of each model."""
    changes: list[Change] = []
    for model in sorted({gpu.model for gpu in gpus})[:MOST_KINDS]:
        same = [gpu for gpu in gpus if gpu.model == model]
        last = max(same, key=lambda gpu: gpu.index)
        name = short(model)
        new = replace(last, uuid=NEW, index=max(gpu.index for gpu in gpus) + 1)
        changes.append(
            Change(kind="more", title=f"One {name} more", gpus=(*gpus, new), slowness={})
        )
        if len(gpus) > 1:
            left = tuple(gpu for gpu in gpus if gpu.uuid != last.uuid)
            changes.append(Change(kind="less", title=f"One {name} less", gpus=left, slowness={}))
        changes += [split(gpus, last, layout) for layout in layouts(last)]
    return changes


def layouts(gpu: CapacityGpu) -> Sequence[tuple[tuple[int, int], ...]]:
    """The MIG layouts that are tried with this GPU; () = it is not known to have MIG."""
    slices = _slices(gpu)
    return () if slices is None or gpu.memory_bytes is None else LAYOUTS[slices[0]]


def split(
    gpus: Sequence[CapacityGpu], gpu: CapacityGpu, layout: tuple[tuple[int, int], ...]
) -> Change:
    """The GPUs with `gpu` as MIG instances of this layout."""
    slices = _slices(gpu)
    if slices is None or gpu.memory_bytes is None:
        raise ValueError(f"{gpu.model} has no MIG")
    compute, memory = slices
    total = gpu.memory_bytes
    parts = tuple(
        replace(
            gpu,
            uuid=f"MIG-{number}",
            memory_bytes=int(USABLE * total * part / memory),
            power=None if gpu.power is None else gpu.power * share / compute,
        )
        for number, (share, part) in enumerate(layout)
    )
    slowness = {part.uuid: compute / share for part, (share, _) in zip(parts, layout, strict=True)}
    words = " + ".join(
        f"{share}g ({total * part / memory / GIB:.0f} GiB)" for share, part in layout
    )
    if len(set(layout)) == 1:
        share, part = layout[0]
        words = f"{len(layout)} × {share}g ({total * part / memory / GIB:.0f} GiB)"
    rest = tuple(other for other in gpus if other.uuid != gpu.uuid)
    return Change(
        kind="mig",
        title=f"GPU {gpu.index} split as {words}",
        gpus=(*rest, *parts),
        slowness=slowness,
        replaced=gpu.uuid,
    )


def _slices(gpu: CapacityGpu) -> tuple[int, int] | None:
    key = capability.rank(gpu.model, {name: float(i) for i, name in enumerate(MIG_MODELS)})
    return None if key is None else list(MIG_MODELS.values())[int(key)]


def short(model: str) -> str:
    """The model without the maker's name; "GPU" if it is unknown."""
    return model.removeprefix("NVIDIA ") or "GPU"
