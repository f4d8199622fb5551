"""Rows -> facts: all that a pass of the planner is given: the queue, the slots, the thresholds."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Generic, TypeVar

from django.conf import settings

from monitor import policies
from monitor import store as monitor_store
from monitor.models import ProcessUse
from monitor.policy.limits import cpu_places
from monitor.probes.limits import LimitsProbe
from scheduler import closures, job_facts, store, throttling, windows, yielding
from scheduler.durations import Durations
from scheduler.jobs import QueuedJob
from scheduler.people import Window
from scheduler.plans import PlanPolicy, Slots
from scheduler.policy import capacity
from scheduler.policy.backfill import BackfillPolicy
from scheduler.policy.capacity import Around, CapacityPolicy, Peaks
from scheduler.policy.ordering import OrderPolicy
from scheduler.policy.preemption import PreemptionPolicy
from scheduler.policy.quotas import QuotaPolicy
from scheduler.policy.rules import Rules
from scheduler.policy.windows import WindowPolicy
from scheduler.standing import Standings

T = TypeVar("T")
# What changes seldom is read again after this.
RULES_FOR, WINDOWS_FOR, PEAKS_FOR = timedelta(seconds=2), timedelta(seconds=2), timedelta(seconds=5)
# More jobs than these are not read anew each second.
LONG, QUEUE_FOR = 200, timedelta(seconds=5)
# A process that was not seen for so long has gone.
GONE_AFTER = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Given:
    """What one pass is given."""

    queue: list[QueuedJob]
    slots: Slots
    policy: PlanPolicy
    rules: Rules


def plan_policy() -> PlanPolicy:
    """From the settings, and what this machine or its container has."""
    config = settings.CONFIG
    limits = LimitsProbe(config.cpus, config.memory_gib).read(os.cpu_count(), None)
    return PlanPolicy(
        margin_bytes=config.memory_margin_mib * 1024**2,
        cpu_jobs=cpu_places(config.cpu_jobs, limits),
    )


@dataclass(frozen=True, slots=True)
class Queue:
    """The waiting jobs as they were at `at`."""

    jobs: dict[int, QueuedJob]
    mark: object
    at: datetime

    def is_good(self, now: datetime) -> bool:
        return len(self.jobs) > LONG and timedelta() <= now - self.at < QUEUE_FOR


class Supply:
    """Loads it for one host, and keeps for a while what changes seldom."""

    def __init__(self, host: str, policy: PlanPolicy) -> None:
        self._host = host
        self._policy = policy
        self.durations = Durations()
        self._queue: Queue | None = None
        self._standings = Standings()
        # Agreed times: running jobs may have to leave before one, though nobody waits.
        self.windows: Kept[tuple[Window, ...]] = Kept(lambda _: windows.approved(), WINDOWS_FOR)
        self._rules: Kept[Rules] = Kept(_rules, RULES_FOR)
        self._peaks: Kept[Peaks] = Kept(lambda now: _peaks(host, now), PEAKS_FOR)

    def queue(self, now: datetime, mark: object = None) -> list[QueuedJob]:
        """Every waiting job. Of a long queue only those are read that came since `mark` was
        another one, and now and then all: so a change of a job in it counts a little later."""
        self.durations.refresh(now)
        kept = self._queue
        if kept is None or mark is None or not kept.is_good(now):
            kept = Queue(self._jobs(), mark, now)
        elif kept.mark != mark:
            kept = self._followed(kept, mark)
        self._queue = kept
        return job_facts.with_waits(list(kept.jobs.values()), now)

    def _followed(self, kept: Queue, mark: object) -> Queue:
        """The same without who has gone, and with who has come."""
        waiting = store.waiting_ids()
        new = waiting - kept.jobs.keys()
        if len(new) > LONG:
            return Queue(self._jobs(), mark, kept.at)
        stayed = {id_: job for id_, job in kept.jobs.items() if id_ in waiting}
        return Queue(stayed | self._jobs(new), mark, kept.at)

    def _jobs(self, ids: Collection[int] | None = None) -> dict[int, QueuedJob]:
        return {job.id: job for job in job_facts.queue(self.durations, ids)}

    def given(self, queue: list[QueuedJob], now: datetime) -> Given:
        """What this queue is planned with. GPUs are read only for jobs that want one, or where a
        part of one is kept for somebody."""
        rules, placed = self._rules(now), job_facts.placed(self.durations)
        running = tuple(placed.get(self._host, ()))
        windows_now = self.windows(now)
        parts = running and any(w.kept and w.share_pct < 100 for w in windows_now)
        if parts or any(job.requirement.gpus for job in queue):
            slots = self._gpu_slots(rules, now)
        else:
            slots = capacity.slots(None, (), self._policy, now, host=self._host)
        throttle = throttling.throttle(self._host, now, running)
        slots = replace(
            slots,
            gpus=tuple(replace(g, use_pct=throttle.uses.get(g.gpu_uuid)) for g in slots.gpus),
            running=running,
            cpu_jobs=sum(job.requirement.gpus == 0 for job in running),
            people=self._standings.at(now, {job.owner for job in queue}, chain(*placed.values())),
            throttle=throttle,
            windows=windows_now,
        )
        return Given(queue, slots, self._policy, rules)

    def _gpu_slots(self, rules: Rules, now: datetime) -> Slots:
        snapshot = monitor_store.newest(self._host)
        around = Around(
            peaks=self._peaks(now),
            closed=closures.of(self._host, snapshot, now) if snapshot else {},
            kept=yielding.kept(self._host, now),
            powers=settings.CONFIG.gpu_power,
        )
        return capacity.slots(
            snapshot,
            monitor_store.open_claims(self._host),
            self._policy,
            now,
            host=self._host,
            around=around,
            capacity=rules.capacity,
        )


class Kept(Generic[T]):
    """Something that is loaded again when it is older than `age`."""

    def __init__(self, load: Callable[[datetime], T], age: timedelta) -> None:
        self._load = load
        self._age = age
        self._found: tuple[datetime, T] | None = None

    def __call__(self, now: datetime) -> T:
        if self._found is None or not timedelta() <= now - self._found[0] < self._age:
            self._found = (now, self._load(now))
        return self._found[1]


def _rules(_now: datetime) -> Rules:
    known = policies.InForce()
    return Rules(
        backfill=known.of(BackfillPolicy),
        capacity=known.of(CapacityPolicy),
        order=known.of(OrderPolicy),
        preemption=known.of(PreemptionPolicy),
        quotas=known.of(QuotaPolicy),
        windows=known.of(WindowPolicy),
    )


def _peaks(host: str, now: datetime) -> Peaks:
    """The most memory that each process which is still there ever held."""
    rows = ProcessUse.objects.filter(
        host=host, last_seen_at__gte=now - GONE_AFTER, ended_at=None, peak_memory_bytes__gt=0
    )
    return {
        (gpu, pid, ticks): peak or 0
        for gpu, pid, ticks, peak in rows.values_list(
            "gpu_id", "pid", "start_ticks", "peak_memory_bytes"
        )
    }
