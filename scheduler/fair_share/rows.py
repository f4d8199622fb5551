"""Rows -> facts: the account of each user on all hosts: limits, holdings, usage, target share.

Values that change rarely are read every few seconds, and running jobs at each call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from math import inf

from django.db.models import Count, Exists, OuterRef, Q
from django.utils import timezone
from msgspec import Struct, field

from monitor.runtime.policy import TimedCache
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import JobState
from scheduler.facts.people import Capacity, UserAccount
from scheduler.facts.plans import RunningJob
from scheduler.jobs.rows import durations
from scheduler.limits.quotas import rows as quota_rows
from scheduler.limits.quotas.policy import charging, quotas
from scheduler.limits.quotas.policy.quotas import CATCH_UP, QuotaPolicy
from scheduler.limits.quotas.rows import Quotas
from scheduler.models import HostCapacity, Job, JobDependency, UsageShare

READ_AGAIN = timedelta(seconds=2)
# The last values of a host that has been silent for this time are ignored.
SILENT = timedelta(minutes=2)


def no_run_time(_owner: str, _name: str) -> None:
    """Where no history is at hand."""


class UsageToday(Struct):
    """A user's usage on all hosts. coverage: the part of the time with known use."""

    usage: float = 0.0
    outside: float = 0.0
    coverage: float | None = None
    owed_s: float = 0.0


class Running(Struct):
    """Holdings of a user's jobs. lasts: (GPUs, remaining time) of each job."""

    gpus: int = 0
    jobs: int = 0
    memory_bytes: int = 0
    held: float = 0.0
    lasts: list[tuple[float, timedelta | None]] = field(default_factory=list)


NONE = Running()


class FairShareAccounts:
    """Cached accounts for repeated calls."""

    def __init__(self) -> None:
        self._snapshot = TimedCache(QuotaSnapshot, READ_AGAIN)

    def forget(self) -> None:
        """Read everything again at the next call, because a setting has changed."""
        self._snapshot.forget()

    def at(
        self,
        now: datetime,
        demand: Collection[str] | None = None,
        placed: Iterable[RunningJob] | None = None,
    ) -> dict[str, UserAccount]:
        """Accounts of all users with demand or holdings, by name.

        demand: users who want any number of GPUs; None = those with waiting jobs, as many as these
        request. placed: placed jobs on all hosts, if already loaded.
        """
        snapshot = self._snapshot(now)
        running = running_jobs(snapshot, now, placed)
        return snapshot.accounts_by_user(running, _wanted(snapshot, demand, now))


def _wanted(
    snapshot: QuotaSnapshot, demand: Collection[str] | None, now: datetime
) -> Mapping[str, float]:
    if demand is None:
        return waiting_gpus(snapshot.capacity, now)
    return dict.fromkeys(demand, inf)


class Rights:
    """The rights of each user to the machine: the one source of entitlements and target shares.

    Entitlements are those of the users with a quota, jobs, current or decayed usage, and
    `more_users`; together at most 100 %.
    """

    def __init__(self, now: datetime, more_users: Iterable[str] = ()) -> None:
        self.snapshot = QuotaSnapshot(now)
        self.running = running_jobs(self.snapshot, now)
        self.wanted = waiting_gpus(self.snapshot.capacity, now)
        self.wanting = {*self.running, *self.wanted}
        quotas_ = self.snapshot.quotas
        self.users = {*self.wanting, *self.snapshot.used, *self.snapshot.spent, *quotas_.agreed()}
        self._shares = {name: quotas_.of(name).share_pct for name in {*self.users, *more_users}}
        self._entitlements = charging.entitlements(self._shares)
        self._accounts = self.snapshot.accounts_by_user(self.running, self.wanted)

    def entitlement(self, name: str) -> float:
        """The grant of quotas to the user, 0 to 1; of another user, as if there was one more."""
        if name in self._entitlements:
            return self._entitlements[name]
        share_pct = self.snapshot.quotas.of(name).share_pct
        return charging.entitlements({**self._shares, name: share_pct})[name]

    def account(self, name: str) -> UserAccount:
        """With the target share; of a user without jobs, as if any number of them waited."""
        account = self._accounts.get(name)
        if account is None:
            wanted = {**self.wanted, name: inf}
            account = self.snapshot.accounts_by_user(self.running, wanted)[name]
        return account

    def target_share(self, name: str) -> float | None:
        """The grant of fair share now, 0 to 1; None: the user has no jobs."""
        return self._accounts[name].target if name in self._accounts else None

    def fair_share(self, name: str) -> float:
        """Use above this takes from others who wait: the entitlement, or the target share if that
        is more."""
        return max(self.entitlement(name), self.account(name).target)


def accounts_by_user(
    now: datetime, demand: Collection[str] | None = None
) -> dict[str, UserAccount]:
    """Accounts without a cache, for a single call."""
    return FairShareAccounts().at(now, demand)


def owed_seconds(
    owed_s: Mapping[str, float], held_s: Mapping[str, float], seconds: float, now: datetime
) -> dict[str, float]:
    """GPU-seconds that users should have held beyond those that they held, by user.

    owed_s: before the last `seconds`, in which users held `held_s`. {} if no job has waited so
    long: then no user keeps GPUs from others.
    """
    wanted = waiting_gpus(capacity(), now, now - timedelta(seconds=seconds))
    if not any(wanted.values()):
        return {}
    shared = QuotaSnapshot(now)
    accounts = shared.accounts_by_user(running_jobs(shared, now), wanted)
    return charging.owed_seconds(
        owed_s,
        {name: account.target for name, account in accounts.items()},
        {name: quotas.demand(a, wanted.get(name, 0.0)) for name, a in accounts.items()},
        # Short jobs may have ended by now.
        max(sum(a.charge for a in accounts.values()), sum(held_s.values()) / seconds),
        held_s,
    )


def past_targets(at: datetime) -> dict[str, float]:
    """Target shares at a past instant, of the users with waiting or placed jobs then.

    From the daily ledger, with today's quotas and capacity; {} = the ledger begins later.
    """
    policy, quotas_ = thresholds.current(QuotaPolicy), Quotas()
    zone = timezone.get_default_timezone_name()
    used = quota_rows.decayed_usage_at(
        at, len(capacity().gpu_uuids), policy.half_life_hours * 3600, zone
    )
    if used is None:
        return {}
    demand = Job.objects.filter(submitted_at__lte=at).exclude(ended_at__lte=at).order_by()
    wanting = sorted(set(demand.values_list("owner__username", flat=True).distinct()))
    weights = charging.weights({name: quotas_.of(name).share_pct for name in wanting})
    return charging.targets(weights, used, CATCH_UP)


class QuotaSnapshot:
    """Values that change rarely, as of `read_at`."""

    def __init__(self, now: datetime) -> None:
        self.read_at = now
        self.policy = thresholds.current(QuotaPolicy)
        self.quotas = Quotas()
        self.zone = timezone.get_default_timezone_name()
        self.spent = quota_rows.spent(charging.day(now, self.zone).from_at)
        self.resets_at = charging.resets_at(now, self.zone)
        hosts = _awake()
        self.capacity = _capacity(hosts)
        self.used = _used(hosts, now)
        # The end of the ledger: later use of jobs is not in `spent` yet.
        self.charged_at = min((host.at for host in hosts), default=now)

    def accounts_by_user(
        self, running: Mapping[str, Running], wanted: Mapping[str, float]
    ) -> dict[str, UserAccount]:
        """Accounts with target shares of all users with jobs. wanted: GPUs of waiting jobs."""
        names = sorted({*running, *wanted})
        weights = charging.weights({name: self.quotas.of(name).share_pct for name in names})
        usage = {name: used.usage for name, used in self.used.items()}
        accounts = {name: self.account(name, running.get(name, NONE)) for name in names}
        targets = charging.targets(weights, usage, CATCH_UP, self._demands(accounts, wanted))
        return {
            name: replace(account, weight=weights[name], target=targets[name])
            for name, account in accounts.items()
        }

    def _demands(
        self, accounts: Mapping[str, UserAccount], wanted: Mapping[str, float]
    ) -> dict[str, float]:
        """The parts of the capacity that users hold or could take; {} = there are no GPUs."""
        gpus = len(self.capacity.gpu_uuids)
        if not gpus:
            return {}
        return {
            name: quotas.demand(account, wanted.get(name, 0.0)) / gpus
            for name, account in accounts.items()
        }

    def account(self, name: str, running: Running) -> UserAccount:
        """The account of a user, without weight and target, which depend on other users."""
        quota, used = self.quotas.of(name), self.used.get(name)
        return UserAccount(
            owner=name,
            quota=quota,
            usage=None if used is None else used.usage,
            gpus=running.gpus,
            jobs=running.jobs,
            memory_bytes=running.memory_bytes,
            charge=running.held + (used.outside if used else 0.0),
            owed=charging.owed_gpus(used.owed_s) if used else 0.0,
            capacity=self.capacity,
            budget=None
            if quota.gpu_minutes is None
            else charging.budget(
                quota.gpu_minutes, self.spent_min(name), running.lasts, self.resets_at, self.zone
            ),
        )

    def spent_min(self, name: str) -> float:
        """GPU-minutes of the day in which this was read."""
        spent = self.spent.get(name)
        return (spent.job_s + spent.outside_s) / 60 if spent else 0.0


def running_jobs(
    snapshot: QuotaSnapshot, now: datetime, placed: Iterable[RunningJob] | None = None
) -> dict[str, Running]:
    """Holdings of placed jobs that have not ended, by owner.

    Remaining times count from the end of the ledger, so that no second is missing.
    """
    capacity, charged_at = snapshot.capacity, min(now, snapshot.charged_at)
    if placed is None:
        placed = chain(*durations.placed(no_run_time).values())
    totals: dict[str, Running] = {}
    for job in placed:
        part = quotas.held(job.requirement, capacity.gpu_bytes)
        sums = totals.setdefault(job.owner, Running())
        sums.gpus += job.requirement.gpus
        sums.jobs += 1
        sums.memory_bytes += quotas.memory(job.requirement, capacity.gpu_bytes)
        sums.held += part
        ran = max(timedelta(0), charged_at - job.started_at)
        lasts = None if job.lasts is None else job.lasts - ran
        sums.lasts.append((part, lasts))
    return totals


def waiting_gpus(
    capacity: Capacity, now: datetime, since: datetime | None = None
) -> dict[str, float]:
    """GPUs that waiting jobs request, by owner; 0 if none of these jobs may start now, or requests
    a GPU.

    since: only of jobs that were submitted before.
    """
    rows = Job.objects.filter(state=JobState.QUEUED.value).order_by()
    if since is not None:
        rows = rows.filter(submitted_at__lte=since)
    kinds = rows.values_list("owner__username", "gpus", "gpu_memory_bytes", "exclusive")
    wanted: dict[str, float] = {}
    for owner, gpus, memory_bytes, exclusive, count in kinds.annotate(
        count=Count("id", filter=_may_start(now))
    ):
        part = charging.part(memory_bytes, exclusive, capacity.gpu_bytes)
        wanted[owner] = wanted.get(owner, 0.0) + count * gpus * part
    return wanted


def _may_start(now: datetime) -> Q:
    awaited = JobDependency.objects.filter(job=OuterRef("pk"))
    return (
        Q(held="")
        & (Q(begin_at=None) | Q(begin_at__lte=now))
        & (Q(retry_at=None) | Q(retry_at__lte=now))
        & ~Q(Exists(awaited.exclude(on__state=JobState.FINISHED.value)))
    )


def capacity() -> Capacity:
    """The shared capacity of all hosts."""
    return _capacity(_awake())


def _awake() -> list[HostCapacity]:
    """The hosts that share their GPUs out; without those that fell silent while others did not."""
    hosts = list(HostCapacity.objects.order_by("host"))
    newest = max((host.at for host in hosts), default=None)
    return [host for host in hosts if newest is None or newest - host.at < SILENT]


def _capacity(rows: Sequence[HostCapacity]) -> Capacity:
    uuids = tuple(uuid for row in rows for uuid in row.gpu_uuids)
    sizes = [(row.gpu_bytes, len(row.gpu_uuids)) for row in rows if row.gpu_bytes]
    gpus = sum(count for _, count in sizes)
    mean = sum(size * count for size, count in sizes) // gpus if gpus else None
    return Capacity(gpu_uuids=uuids, gpu_bytes=mean)


def _used(hosts: Sequence[HostCapacity], now: datetime) -> dict[str, UsageToday]:
    """Of several hosts, each counts by its GPUs."""
    gpus = {host.host: len(host.gpu_uuids) for host in hosts}
    answering = {host.host for host in hosts if now - host.at < SILENT}
    total = sum(gpus.values())
    rows: dict[str, list[UsageShare]] = {}
    for row in UsageShare.objects.filter(host__in=gpus):
        row.outside = row.outside if row.host in answering else 0.0
        rows.setdefault(row.owner, []).append(row)
    return {owner: _sum(usages, gpus, total) for owner, usages in rows.items()} if total else {}


def _sum(rows: Iterable[UsageShare], gpus: Mapping[str, int], total: int) -> UsageToday:
    usages = list(rows)
    seen_s = sum(row.seen_s for row in usages)
    return UsageToday(
        usage=sum(row.usage * gpus[row.host] for row in usages) / total,
        outside=sum(row.outside for row in usages),
        coverage=sum(row.known_s for row in usages) / seen_s if seen_s else None,
        owed_s=sum(row.owed_s for row in usages),
    )
