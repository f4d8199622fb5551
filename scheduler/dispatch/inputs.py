"""The input of a planning pass: the waiting jobs that may start here, the slots, the thresholds."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.readings import HostFact, Snapshot
from monitor.gpus.policy import hosts as host_policy
from monitor.gpus.policy.capability import cpu_places
from monitor.gpus.rows import hosts as host_rows
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.host import LimitsProbe
from monitor.journal.rows import audit
from monitor.models import ProcessUse
from monitor.runtime.policy import TimedCache
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.extensions import part
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.disk.steps import FullDisks
from scheduler.execution.steps import gpu_closures
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import QueuedJob
from scheduler.facts.language_models import OWNER
from scheduler.facts.people import UserAccount, Window
from scheduler.facts.plans import PlanPolicy, RunningJob, Slots
from scheduler.fair_share.rows import FairShareAccounts
from scheduler.jobs.rows import durations
from scheduler.jobs.rows.durations import Durations
from scheduler.jobs.rows.relations import UnmetDependencies
from scheduler.limits.quotas.policy.quotas import QuotaPolicy
from scheduler.limits.throttle import step as throttle_rows
from scheduler.limits.time_windows import rows as window_rows
from scheduler.limits.time_windows.policy import WindowPolicy
from scheduler.models import EngineStatus, EngineTask
from scheduler.queue.planner import capacity
from scheduler.queue.planner.capacity import (
    CapacityContext,
    HostPolicy,
    Peaks,
)
from scheduler.queue.planner.gates import PlannerThresholds
from scheduler.queue.planner.order import OrderPolicy
from scheduler.queue.planner.preemption import PreemptionPolicy

# Lifetime of cached values that change rarely.
RULES_FOR, WINDOWS_FOR, PEAKS_FOR = timedelta(seconds=2), timedelta(seconds=2), timedelta(seconds=5)
# Longer queues are not read completely each second.
LONG, QUEUE_FOR = 200, timedelta(seconds=5)
DRAINED_FOR = timedelta(seconds=2)
ENGINES_FOR = timedelta(seconds=30)
# A process that was not listed for this time has ended.
GONE_AFTER = timedelta(seconds=60)


class PlanInput(Struct, frozen=True):
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


class QueueCache(Struct, frozen=True):
    """The waiting jobs as they were at `at`."""

    jobs: dict[int, QueuedJob]
    mark: object
    at: datetime

    def is_good(self, now: datetime) -> bool:
        return len(self.jobs) > LONG and timedelta() <= now - self.at < QUEUE_FOR


class Drained(Struct, frozen=True):
    """The host takes no jobs; has_others: another host in contact does."""

    blocker: Blocker
    has_others: bool


class HostGate:
    """Leaves out jobs of other hosts and engines, and blocks all while the host is drained."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._drained: TimedCache[Drained | None] = TimedCache(
            lambda now: drained(host, now), DRAINED_FOR
        )
        # The case without another engine costs nothing.
        self._has_engines: TimedCache[bool] = TimedCache(
            lambda _now: EngineStatus.objects.exists(), ENGINES_FOR
        )
        self._takers: TimedCache[list[str]] = TimedCache(
            lambda now: [fact.name for fact in host_rows.all_hosts() if _is_taker(fact, now)],
            DRAINED_FOR,
        )
        # The jobs that were left out at the last call.
        self.elsewhere: frozenset[int] = frozenset()

    def of_queue(self, jobs: list[QueuedJob], now: datetime) -> list[QueuedJob]:
        """A drained host reports its reason only where no other host takes the job."""
        state = self._drained(now)
        own = ("", self._host) if state is None or not state.has_others else (self._host,)
        here = [job for job in jobs if job.host in own]
        if self._has_engines(now):
            handed = set(_handed_over())
            here = [job for job in here if job.id not in handed]
        if len(here) < len(jobs):
            left_out = {job.id for job in jobs} - {job.id for job in here}
            self.elsewhere = frozenset(left_out)
        else:
            self.elsewhere = frozenset()
        if state is None:
            return here
        return [dataclasses.replace(job, waits=(*job.waits, state.blocker)) for job in here]

    def is_closed(self) -> bool:
        """Whether an operator has drained or disabled the host, without the delay of the cache."""
        if host_rows.takes_jobs(self._host):
            return False
        # The next plan must know it.
        self._drained.forget()
        return True

    def forget(self) -> None:
        """Read the states of hosts again at the next call, because a setting has changed."""
        self._drained.forget()
        self._takers.forget()

    def takers(self, now: datetime) -> list[str]:
        """The hosts in contact that take jobs."""
        return self._takers(now)


@compiled_once
def _handed_over() -> QuerySet[Any, int]:
    """Jobs that another engine has or may have."""
    return EngineTask.objects.filter(closed_at=None).values_list("job_id", flat=True)


def drained(host: str, now: datetime) -> Drained | None:
    """None: the host takes jobs."""
    fact = host_rows.find(host)
    if fact is None or fact.takes_jobs:
        return None
    others = [other for other in host_rows.all_hosts() if other.name != host]
    takers = [other for other in others if _is_taker(other, now)]
    blocker = Blocker(
        code=BlockerCode.HOST_DRAINED,
        tier=Tier.MACHINE,
        holder=fact.changed_by,
        details=details(host=host, reason=fact.reason),
    )
    return Drained(blocker, bool(takers))


def _is_taker(host: HostFact, now: datetime) -> bool:
    """Whether it is in contact and takes jobs."""
    is_there = host.seen_at is not None and host_policy.silent_since(host, now) is None
    return is_there and host.takes_jobs


class PlanInputs:
    """Loads the input for one host, and caches values that change rarely."""

    def __init__(
        self, host: str, policy: PlanPolicy, isolation: ItemIsolation | None = None
    ) -> None:
        self._host = host
        self._policy = policy
        self._isolation = isolation or ItemIsolation(host, "pages", reports=False)
        self.durations = Durations()
        self._waiting = durations.WaitingJobs(self.durations)
        self._queue: QueueCache | None = None
        self._unmet = UnmetDependencies()
        self._accounts = FairShareAccounts()
        self.full_disks = FullDisks(host)
        self.gate = HostGate(host)
        self._windows: TimedCache[tuple[Window, ...]] = TimedCache(
            lambda now: window_rows.approved(self._isolation.converter(now)), WINDOWS_FOR
        )
        self._reserved: TimedCache[dict[str, str]] = TimedCache(
            lambda _now: gpu_closures.gpus_of_models(), WINDOWS_FOR
        )
        self._rules: TimedCache[PlannerThresholds] = TimedCache(_rules, RULES_FOR)
        self._peaks: TimedCache[Peaks] = TimedCache(lambda now: _peaks(host, now), PEAKS_FOR)
        self._changes: list[int] | None = None

    def _follow_changes(self) -> None:
        """Forget values that users change, once an action was recorded since the last call.

        Every action is recorded in the transaction that changes a window, quota or threshold.
        """
        before, self._changes = self._changes, audit.newest()
        if before in (None, self._changes):
            return
        for values in (self._windows, self._reserved, self._rules, self._accounts, self.gate):
            values.forget()

    def windows(self, now: datetime) -> tuple[Window, ...]:
        """The approved windows: jobs may have to leave before one even if no job waits."""
        self._follow_changes()
        return self._windows(now)

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
        jobs = durations.with_waits(jobs, now, convert, self._unmet)
        return self.full_disks.with_blockers(jobs, now)

    def _followed(self, cached: QueueCache, mark: object, now: datetime) -> QueueCache:
        """The cached queue without the jobs that left it, and with new jobs."""
        waiting = durations.waiting_ids()
        new = waiting - cached.jobs.keys()
        if len(new) > LONG:
            return QueueCache(self._jobs(now), mark, cached.at)
        stayed = {id_: job for id_, job in cached.jobs.items() if id_ in waiting}
        return QueueCache(stayed | self._jobs(now, new), mark, cached.at)

    def _jobs(self, now: datetime, ids: Collection[int] | None = None) -> dict[int, QueuedJob]:
        converter = self._isolation.converter(now)
        if ids is None:
            return self._waiting.read(converter)
        expect = self.durations.expect
        return {job.id: job for job in durations.queue(self.durations, ids, converter, expect)}

    def given(self, queue: list[QueuedJob], now: datetime) -> PlanInput:
        """The input to plan this queue.

        GPUs are read only if a job requests one, or if a time window holds a part of one.
        """
        # Read after the queue: a job that was submitted after a change is planned with it.
        windows_now = self.windows(now)
        rules = self._rules(now)
        converter = self._isolation.converter(now)
        placed = durations.placed(self.durations, converter, self.durations.expect)
        running = tuple(placed.get(self._host, ()))
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
            people=self._people(placed, now),
            throttle=throttle,
            windows=windows_now,
        )
        return PlanInput(_on_named_gpus(queue), slots, self._policy, rules)

    def _people(
        self, placed: Mapping[str, list[RunningJob]], now: datetime
    ) -> dict[str, UserAccount]:
        """Model services have no quota: their services limit them."""
        people = self._accounts.at(now, placed=chain(*placed.values()))
        return {name: account for name, account in people.items() if name != OWNER}

    def gpu_slots(self, now: datetime) -> Slots:
        """The GPUs alone: without running jobs, users, load and time windows."""
        snapshot = snapshots.newest(self._host)
        context = CapacityContext(
            peaks=self._peaks(now),
            closed=self._closed(snapshot, now) if snapshot else {},
            kept=gpu_closures.gpu_holds(self._host, now),
            powers=settings.CONFIG.gpu_power,
        )
        slots = capacity.slots(
            snapshot,
            snapshots.open_claims(self._host),
            self._policy,
            now,
            host=self._host,
            context=context,
        )
        batches = gpu_closures.gpus_of_batches(self._host)
        if not batches:
            return slots
        gpus = tuple(replace(gpu, batch=batches.get(gpu.gpu_uuid)) for gpu in slots.gpus)
        return replace(slots, gpus=gpus)

    def _closed(self, snapshot: Snapshot, now: datetime) -> dict[str, tuple[Blocker, ...]]:
        return gpu_closures.gpu_closures(self._host, snapshot, now, self._isolation)


def _on_named_gpus(queue: list[QueuedJob]) -> list[QueuedJob]:
    """The jobs of models with the GPUs that their services name."""
    of_models = [job.id for job in queue if job.owner == OWNER and job.requirement.gpus]
    on_gpus_of = part("scheduler.language_models.model_services.rows:on_gpus_of")
    named = on_gpus_of(of_models) if of_models and on_gpus_of else {}
    return (
        [
            dataclasses.replace(
                job, requirement=dataclasses.replace(job.requirement, among=named[job.id])
            )
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
        host=in_force.of(HostPolicy),
        order=in_force.of(OrderPolicy),
        preemption=in_force.of(PreemptionPolicy),
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
