"""Where people stand: their limits, what they hold, what they should have. Rows -> facts.

Of all hosts together. What changes seldom is read every few seconds, what runs at each call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain

from django.utils import timezone

from monitor import policies
from scheduler import job_facts, share_rows
from scheduler.jobs import JobState
from scheduler.models import Job, SharedOut, UsedShare
from scheduler.people import Capacity, Standing
from scheduler.plans import RunningJob
from scheduler.policy import budgets, quotas, shares
from scheduler.policy.quotas import QuotaPolicy
from scheduler.quota_rows import Quotas

READ_AGAIN = timedelta(seconds=2)
# What a host that has been silent for so long said last is not how things are.
SILENT = timedelta(minutes=2)


def nobody_knows(_owner: str, _name: str) -> None:
    """Where no history is at hand."""


@dataclass(slots=True)
class Used:
    """What a person took, of all hosts. coverage: of the time, for how much it is known."""

    usage: float = 0.0
    outside: float = 0.0
    coverage: float | None = None


@dataclass(slots=True)
class Running:
    """What a person's jobs hold now; `lasts`: what each holds, and for how long it may go on."""

    gpus: int = 0
    jobs: int = 0
    memory_bytes: int = 0
    held: float = 0.0
    lasts: list[tuple[float, timedelta | None]] = field(default_factory=list)


NONE = Running()


class Standings:
    """For one who asks again and again."""

    def __init__(self) -> None:
        self._known: Known | None = None

    def at(
        self,
        now: datetime,
        demand: Collection[str] | None = None,
        placed: Iterable[RunningJob] | None = None,
    ) -> dict[str, Standing]:
        """By name, of all who want or have something. Who is not there has no jobs.

        `demand`: who has jobs that wait, `placed`: what has a place on any host, if known.
        """
        if self._known is None or not timedelta(0) <= now - self._known.read_at < READ_AGAIN:
            self._known = Known(now)
        running = running_jobs(self._known, now, placed)
        waiting = waiting_owners() if demand is None else demand
        return self._known.standings(running, sorted({*running, *waiting}))


def standings(now: datetime, demand: Collection[str] | None = None) -> dict[str, Standing]:
    """The same for one who asks once."""
    return Standings().at(now, demand)


class Known:
    """What changes seldom, as it was at `read_at`."""

    def __init__(self, now: datetime) -> None:
        self.read_at = now
        self.policy = policies.current(QuotaPolicy)
        self.quotas = Quotas()
        self.zone = timezone.get_default_timezone_name()
        self.spent = share_rows.spent(budgets.day(now, self.zone).from_at)
        self.resets_at = budgets.resets_at(now, self.zone)
        hosts = _awake()
        self.capacity = _capacity(hosts)
        self.used = _used(hosts, now)
        # So far the ledger goes: what jobs took since then is not in what is spent yet.
        self.charged_at = min((host.at for host in hosts), default=now)

    def standings(
        self, running: Mapping[str, Running], wanting: Collection[str]
    ) -> dict[str, Standing]:
        """Of those who want or have something, and so share it all out among themselves."""
        weights = shares.weights({name: self.quotas.of(name).share_pct for name in wanting})
        usage = {name: used.usage for name, used in self.used.items()}
        targets = shares.targets(weights, usage, self.policy.catch_up)
        return {
            name: self.standing(name, running.get(name, NONE), weights[name], targets[name])
            for name in wanting
        }

    def standing(self, name: str, running: Running, weight: float, target: float) -> Standing:
        quota, used = self.quotas.of(name), self.used.get(name)
        return Standing(
            owner=name,
            quota=quota,
            weight=weight,
            usage=None if used is None else used.usage,
            target=target,
            gpus=running.gpus,
            jobs=running.jobs,
            memory_bytes=running.memory_bytes,
            charge=running.held + (used.outside if used else 0.0),
            capacity=self.capacity,
            budget=None
            if quota.gpu_minutes is None
            else budgets.budget(
                quota.gpu_minutes, self.spent_min(name), running.lasts, self.resets_at, self.zone
            ),
        )

    def spent_min(self, name: str) -> float:
        """GPU-minutes of the day in which this was read."""
        spent = self.spent.get(name)
        return (spent.job_s + spent.outside_s) / 60 if spent else 0.0


def running_jobs(
    known: Known, now: datetime, placed: Iterable[RunningJob] | None = None
) -> dict[str, Running]:
    """By owner, what their jobs hold that have been placed and have not ended.

    What each may still take is counted from where the ledger ends, so that no second is missing.
    """
    capacity, charged_at = known.capacity, min(now, known.charged_at)
    if placed is None:
        placed = chain(*job_facts.placed(nobody_knows).values())
    found: dict[str, Running] = {}
    for job in placed:
        part = quotas.held(job.requirement, capacity.gpu_bytes)
        sums = found.setdefault(job.owner, Running())
        sums.gpus += job.requirement.gpus
        sums.jobs += 1
        sums.memory_bytes += quotas.memory(job.requirement, capacity.gpu_bytes)
        sums.held += part
        ran = max(timedelta(0), charged_at - job.started_at)
        lasts = None if job.lasts is None else job.lasts - ran
        sums.lasts.append((part, lasts))
    return found


def waiting_owners() -> set[str]:
    rows = Job.objects.filter(state=JobState.QUEUED.value).order_by()
    return set(rows.values_list("owner__username", flat=True).distinct())


def capacity() -> Capacity:
    """What is shared out on all hosts."""
    return _capacity(_awake())


def _awake() -> list[SharedOut]:
    """The hosts that share their GPUs out; without those that fell silent while others did not."""
    hosts = list(SharedOut.objects.order_by("host"))
    newest = max((host.at for host in hosts), default=None)
    return [host for host in hosts if newest is None or newest - host.at < SILENT]


def _capacity(rows: Sequence[SharedOut]) -> Capacity:
    uuids = tuple(uuid for row in rows for uuid in row.gpu_uuids)
    known = [(row.gpu_bytes, len(row.gpu_uuids)) for row in rows if row.gpu_bytes]
    gpus = sum(count for _, count in known)
    mean = sum(size * count for size, count in known) // gpus if gpus else None
    return Capacity(gpu_uuids=uuids, gpu_bytes=mean)


def _used(hosts: Sequence[SharedOut], now: datetime) -> dict[str, Used]:
    """Of several hosts, each counts by its GPUs."""
    gpus = {host.host: len(host.gpu_uuids) for host in hosts}
    seen = {host.host for host in hosts if now - host.at < SILENT}
    total = sum(gpus.values())
    rows: dict[str, list[UsedShare]] = {}
    for row in UsedShare.objects.filter(host__in=gpus):
        row.outside = row.outside if row.host in seen else 0.0
        rows.setdefault(row.owner, []).append(row)
    return {owner: _sum(mine, gpus, total) for owner, mine in rows.items()} if total else {}


def _sum(rows: Iterable[UsedShare], gpus: Mapping[str, int], total: int) -> Used:
    mine = list(rows)
    seen = sum(row.seen_s for row in mine)
    return Used(
        usage=sum(row.usage * gpus[row.host] for row in mine) / total,
        outside=sum(row.outside for row in mine),
        coverage=sum(row.known_s for row in mine) / seen if seen else None,
    )
