"""The input of a planning pass: the queue, the slots, the thresholds, and closed GPUs."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Protocol

from django.conf import settings

from monitor.facts.gpu_states import ClosureFact, ClosureKind
from monitor.facts.readings import ComputeMode, GpuReading, ProcessReading, Snapshot
from monitor.gpus import rows as availability
from monitor.gpus.policy.capability import cpu_places
from monitor.models import ProcessUse
from monitor.runtime.facts import TimedCache
from monitor.runtime.rows.item_isolation import ItemIsolation, is_of_step
from monitor.sampling.probes.limits import LimitsProbe
from monitor.snapshot import rows as monitor_store
from monitor.thresholds import rows as thresholds
from scheduler.batches.rows import exclusive
from scheduler.disk.steps.folders import FullDisks
from scheduler.execution.steps import gpu_locks
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import QueuedJob
from scheduler.facts.model_services import OWNER
from scheduler.facts.people import UserAccount, Window
from scheduler.facts.plans import PlanPolicy, RunningJob, Slots
from scheduler.fair_share.rows import FairShareAccounts
from scheduler.hosts.inputs import HostGate
from scheduler.lifecycle.rows import queue_facts
from scheduler.lifecycle.rows.queue_facts import Durations
from scheduler.lifecycle.rows.relations import UnmetDependencies
from scheduler.model_services import rows as model_rows
from scheduler.planner import capacity
from scheduler.planner.capacity import (
    CapacityContext,
    CapacityPolicy,
    HostPolicy,
    Peaks,
    lets_one_in,
)
from scheduler.planner.gates import PlannerThresholds
from scheduler.planner.order import OrderPolicy
from scheduler.planner.placement import BackfillPolicy, RankPolicy
from scheduler.planner.preemption import PreemptionPolicy
from scheduler.quotas.policy.quotas import QuotaPolicy
from scheduler.throttle import rows as throttle_rows
from scheduler.time_windows import rows as window_rows
from scheduler.time_windows.policy.rules import WindowPolicy
from scheduler.yields import steps as yield_requests

Closed = Mapping[str, tuple[Blocker, ...]]


class Source(Protocol):
    """A source of closures: blockers of closed GPUs of a host, by UUID."""

    __name__: str

    def __call__(self, host: str, snapshot: Snapshot, now: datetime, /) -> Closed: ...


def gpu_closures(
    host: str, snapshot: Snapshot, now: datetime, isolation: ItemIsolation | None = None
) -> dict[str, tuple[Blocker, ...]]:
    """Blockers of closed GPUs, by UUID.

    If a source fails for a GPU, that GPU is closed; the other GPUs are not affected.
    """
    isolation = isolation or ItemIsolation(host, "closures", reports=False)
    closures: dict[str, tuple[Blocker, ...]] = {}
    for source in SOURCES:
        for uuid, blockers in _closed_by(source, host, snapshot, now, isolation).items():
            closures[uuid] = (*closures.get(uuid, ()), *blockers)
    return closures


def _closed_by(
    source: Source, host: str, snapshot: Snapshot, now: datetime, isolation: ItemIsolation
) -> Closed:
    """Closures from one source. If it fails for all GPUs together, it is asked for each GPU."""
    try:
        return source(host, snapshot, now)
    except Exception as error:
        if is_of_step(error):
            raise
        gpus = isolation.each(
            snapshot.gpus,
            lambda gpu: f"{source.__name__} of GPU {gpu.index}",
            lambda gpu: source(host, replace(snapshot, gpus=(gpu,)), now),
            now,
        )
    uuids = {gpu.uuid for gpu, _ in gpus}
    unknown = {gpu.uuid: (_unknown(gpu),) for gpu in snapshot.gpus if gpu.uuid not in uuids}
    return unknown | {uuid: why for _, closed in gpus for uuid, why in closed.items()}


def _unknown(gpu: GpuReading) -> Blocker:
    return Blocker(code=BlockerCode.GPU_UNCLEAR, tier=Tier.MACHINE, gpu=gpu.index)


def paused_or_quarantined(host: str, snapshot: Snapshot, _now: datetime) -> Closed:
    """GPUs that an operator paused, and those in quarantine."""
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    closures: dict[str, tuple[Blocker, ...]] = {}
    for fact in availability.on(host):
        if fact.gpu_uuid in indices:
            blocker = _blocker(fact, indices[fact.gpu_uuid])
            closures[fact.gpu_uuid] = (*closures.get(fact.gpu_uuid, ()), blocker)
    return closures


def _blocker(fact: ClosureFact, gpu: int) -> Blocker:
    if fact.kind is ClosureKind.PAUSED:
        return Blocker(
            code=BlockerCode.GPU_PAUSED,
            tier=Tier.MACHINE,
            gpu=gpu,
            holder=fact.by,
            details=details(reason=fact.reason),
        )
    if fact.kind is ClosureKind.LOCK_FILE:
        return Blocker(
            code=BlockerCode.GPU_LOCKED,
            tier=Tier.MACHINE,
            gpu=gpu,
            details=details(refused=fact.reason.rstrip(".")),
        )
    if fact.kind is ClosureKind.UNKNOWN:
        return Blocker(code=BlockerCode.GPU_UNCLEAR, tier=Tier.MACHINE, gpu=gpu)
    return Blocker(
        code=BlockerCode.GPU_QUARANTINED,
        tier=Tier.MACHINE,
        gpu=gpu,
        holder=f"job {fact.job_ref}, pid {fact.pid}",
        details=details(job_ref=fact.job_ref, memory_bytes=fact.memory_bytes),
    )


def closed_by_compute_mode(_host: str, snapshot: Snapshot, _now: datetime) -> Closed:
    """GPUs whose compute mode forbids computing, or allows only a foreign process."""
    closures: dict[str, tuple[Blocker, ...]] = {}
    for gpu in snapshot.gpus:
        if gpu.compute_mode is ComputeMode.PROHIBITED:
            closures[gpu.uuid] = (_prohibited(gpu.index),)
        elif lets_one_in(gpu, snapshot):
            others = [p for p in snapshot.on(gpu.uuid) if p.job_ref is None and "C" in p.kinds]
            if others:
                closures[gpu.uuid] = (_taken_by_one(gpu.index, others[0]),)
    return closures


def _prohibited(index: int) -> Blocker:
    return Blocker(code=BlockerCode.COMPUTE_PROHIBITED, tier=Tier.MACHINE, gpu=index)


def _taken_by_one(index: int, process: ProcessReading) -> Blocker:
    holder = f"{process.user or 'unknown user'}/{process.program or f'pid {process.pid}'}"
    return Blocker(code=BlockerCode.COMPUTE_EXCLUSIVE, tier=Tier.MACHINE, gpu=index, holder=holder)


def closed_by_owners(_host: str, snapshot: Snapshot, _now: datetime) -> Closed:
    """GPUs used by a user outside the queue."""
    return capacity.owner_closures(snapshot)


# In the order of display.
SOURCES: tuple[Source, ...] = (
    closed_by_owners,
    paused_or_quarantined,
    closed_by_compute_mode,
    gpu_locks.locked_gpus,
)


# Lifetime of cached values that change rarely.
RULES_FOR, WINDOWS_FOR, PEAKS_FOR = timedelta(seconds=2), timedelta(seconds=2), timedelta(seconds=5)
# Longer queues are not read completely each second.
LONG, QUEUE_FOR = 200, timedelta(seconds=5)
# A process that was not listed for this time has ended.
GONE_AFTER = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class PlanInput:
    """The input of one planning pass."""

    queue: list[QueuedJob]
    slots: Slots
    policy: PlanPolicy
    rules: PlannerThresholds


def plan_policy() -> PlanPolicy:
    """From the settings and the limits of this machine or container."""
    config = settings.CONFIG
    limits = LimitsProbe(config.cpus, config.memory_gib).read(os.cpu_count(), None)
    return PlanPolicy(
        margin_bytes=config.memory_margin_mib * 1024**2,
        cpu_jobs=cpu_places(config.cpu_jobs, limits),
        host_memory_bytes=limits.memory_bytes or _machine_memory(),
        host_cpus=limits.cpus,
    )


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, slots=True)
class QueueCache:
    """The waiting jobs as they were at `at`."""

    jobs: dict[int, QueuedJob]
    mark: object
    at: datetime

    def is_good(self, now: datetime) -> bool:
        return len(self.jobs) > LONG and timedelta() <= now - self.at < QUEUE_FOR


class PlanInputs:
    """Loads the input for one host, and caches values that change rarely."""

    def __init__(
        self, host: str, policy: PlanPolicy, isolation: ItemIsolation | None = None
    ) -> None:
        self._host = host
        self._policy = policy
        self._isolation = isolation or ItemIsolation(host, "pages", reports=False)
        self.durations = Durations()
        self._queue: QueueCache | None = None
        self._unmet = UnmetDependencies()
        self._accounts = FairShareAccounts()
        self.full_disks = FullDisks(host)
        self.gate = HostGate(host)
        # Running jobs may have to leave before a time window even if no job waits.
        self.windows: TimedCache[tuple[Window, ...]] = TimedCache(
            lambda now: window_rows.approved(self._isolation.converter(now)), WINDOWS_FOR
        )
        self._reserved: TimedCache[dict[str, str]] = TimedCache(
            lambda _now: model_rows.reserved_gpus(), WINDOWS_FOR
        )
        self._rules: TimedCache[PlannerThresholds] = TimedCache(_rules, RULES_FOR)
        self._peaks: TimedCache[Peaks] = TimedCache(lambda now: _peaks(host, now), PEAKS_FOR)

    def queue(self, now: datetime, mark: object = None) -> list[QueuedJob]:
        """All waiting jobs that may start on this host.

        Of a long queue only new jobs are read when `mark` changes, and all jobs from time to time;
        so a changed job takes effect a little later.
        """
        self.durations.refresh(now)
        cached = self._queue
        if cached is None or mark is None or not cached.is_good(now):
            cached = QueueCache(self._jobs(now), mark, now)
        elif cached.mark != mark:
            cached = self._followed(cached, mark, now)
        self._queue = cached
        jobs = self.gate.of_queue(list(cached.jobs.values()), now)
        convert = self._isolation.converter(now)
        jobs = queue_facts.with_waits(jobs, now, convert, self._unmet)
        return self.full_disks.with_blockers(jobs, now)

    def _followed(self, cached: QueueCache, mark: object, now: datetime) -> QueueCache:
        """The cached queue without the jobs that left it, and with new jobs."""
        waiting = queue_facts.waiting_ids()
        new = waiting - cached.jobs.keys()
        if len(new) > LONG:
            return QueueCache(self._jobs(now), mark, cached.at)
        stayed = {id_: job for id_, job in cached.jobs.items() if id_ in waiting}
        return QueueCache(stayed | self._jobs(now, new), mark, cached.at)

    def _jobs(self, now: datetime, ids: Collection[int] | None = None) -> dict[int, QueuedJob]:
        converter = self._isolation.converter(now)
        expect = self.durations.expect
        return {job.id: job for job in queue_facts.queue(self.durations, ids, converter, expect)}

    def given(self, queue: list[QueuedJob], now: datetime) -> PlanInput:
        """The input to plan this queue.

        GPUs are read only if a job requests one, or if a time window holds a part of one.
        """
        rules = self._rules(now)
        converter = self._isolation.converter(now)
        placed = queue_facts.placed(self.durations, converter, self.durations.expect)
        running = tuple(placed.get(self._host, ()))
        windows_now = self.windows(now)
        parts = running and any(w.kept and w.share_pct < 100 for w in windows_now)
        if parts or any(job.requirement.gpus for job in queue):
            slots = self.gpu_slots(now)
        else:
            slots = capacity.slots(None, (), self._policy, now, host=self._host)
        throttle = throttle_rows.throttle(self._host, now, running)
        slots = replace(
            slots,
            reserved=self._reserved(now),
            gpus=tuple(replace(g, use_pct=throttle.uses.get(g.gpu_uuid)) for g in slots.gpus),
            running=running,
            cpu_jobs=sum(job.requirement.gpus == 0 and job.owner != OWNER for job in running),
            people=self._people(queue, placed, now),
            throttle=throttle,
            windows=windows_now,
        )
        return PlanInput(_on_named_gpus(queue), slots, self._policy, rules)

    def _people(
        self, queue: list[QueuedJob], placed: Mapping[str, list[RunningJob]], now: datetime
    ) -> dict[str, UserAccount]:
        """Model services have no quota: their services limit them."""
        owners = {job.owner for job in queue}
        people = self._accounts.at(now, owners, chain(*placed.values()))
        return {name: account for name, account in people.items() if name != OWNER}

    def gpu_slots(self, now: datetime) -> Slots:
        """The GPUs alone: without running jobs, users, load and time windows."""
        snapshot = monitor_store.newest(self._host)
        context = CapacityContext(
            peaks=self._peaks(now),
            closed=self._closed(snapshot, now) if snapshot else {},
            kept=yield_requests.gpu_holds(self._host, now),
            powers=settings.CONFIG.gpu_power,
        )
        slots = capacity.slots(
            snapshot,
            monitor_store.open_claims(self._host),
            self._policy,
            now,
            host=self._host,
            context=context,
            capacity=self._rules(now).capacity,
        )
        batches = exclusive.reserved(self._host)
        if not batches:
            return slots
        gpus = tuple(replace(gpu, batch=batches.get(gpu.gpu_uuid)) for gpu in slots.gpus)
        return replace(slots, gpus=gpus)

    def _closed(self, snapshot: Snapshot, now: datetime) -> dict[str, tuple[Blocker, ...]]:
        return gpu_closures(self._host, snapshot, now, self._isolation)


def _on_named_gpus(queue: list[QueuedJob]) -> list[QueuedJob]:
    """The jobs of models with the GPUs that their services name."""
    of_models = [job.id for job in queue if job.owner == OWNER and job.requirement.gpus]
    named = model_rows.on_gpus_of(of_models) if of_models else {}
    return (
        [
            replace(job, requirement=replace(job.requirement, among=named[job.id]))
            if job.id in named
            else job
            for job in queue
        ]
        if named
        else queue
    )


def _rules(_now: datetime) -> PlannerThresholds:
    in_force = thresholds.ThresholdsInForce()
    return PlannerThresholds(
        backfill=in_force.of(BackfillPolicy),
        capacity=in_force.of(CapacityPolicy),
        host=in_force.of(HostPolicy),
        order=in_force.of(OrderPolicy),
        preemption=in_force.of(PreemptionPolicy),
        rank=in_force.of(RankPolicy),
        quotas=in_force.of(QuotaPolicy),
        windows=in_force.of(WindowPolicy),
    )


def _peaks(host: str, now: datetime) -> Peaks:
    """The peak memory of each process that still runs."""
    rows = ProcessUse.objects.filter(
        host=host, last_seen_at__gte=now - GONE_AFTER, ended_at=None, peak_memory_bytes__gt=0
    )
    return {
        (gpu, pid, ticks): peak or 0
        for gpu, pid, ticks, peak in rows.values_list(
            "gpu_id", "pid", "start_ticks", "peak_memory_bytes"
        )
    }
