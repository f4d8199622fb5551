"""Accounts of users on a replay's clock: past usage, daily budgets, target shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduler.facts.people import Budget, Capacity, Quota, UserAccount
from scheduler.facts.plans import RunningJob
from scheduler.limits.quotas.policy import charging, quotas
from scheduler.limits.quotas.policy.quotas import CATCH_UP, QuotaPolicy

# GPUs that each user's processes outside jobs use from a moment on, oldest first.
OutsideUse = Sequence[tuple[datetime, Mapping[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountInput:
    """Facts about users. usage: decayed at the begin of the replay. zone: of daily budgets."""

    quotas: Mapping[str, Quota] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    outside: OutsideUse = ()
    zone: str = "UTC"


class Accounts:
    """Call `advance` before each change of the running jobs."""

    def __init__(self, given: AccountInput, capacity: Capacity, policy: QuotaPolicy) -> None:
        self._given, self._capacity, self._policy = given, capacity, policy
        self._usage = dict(given.usage)
        self._coming = list(reversed(given.outside))
        self._outside: Mapping[str, float] = {}
        self._spent_s: dict[str, float] = {}
        self._now: datetime | None = None

    def advance(self, now: datetime, running: Iterable[RunningJob]) -> None:
        """Charge what these jobs and the processes outside used since the last call."""
        since, jobs = self._now or now, self._held(running)
        for _, begin, end in charging.days(since, now, self._given.zone):
            if begin != since:
                self._spent_s = {}
            self._charge(jobs, (end - begin).total_seconds())
        if self._now is not None and charging.day(since, self._given.zone).until_at == now:
            self._spent_s = {}
        self._now = now
        while self._coming and self._coming[-1][0] <= now:
            _, self._outside = self._coming.pop()

    def _charge(self, jobs: Mapping[str, float], seconds: float) -> None:
        rates = {
            name: jobs.get(name, 0.0) + self._outside.get(name, 0.0)
            for name in {*jobs, *self._outside}
        }
        for name, rate in rates.items():
            self._spent_s[name] = self._spent_s.get(name, 0.0) + rate * seconds
        if gpus := len(self._capacity.gpu_uuids):
            parts = {name: rate / gpus for name, rate in rates.items()}
            half_life_s = self._policy.half_life_hours * 3600
            self._usage = charging.advance(self._usage, parts, seconds, half_life_s)

    def _held(self, running: Iterable[RunningJob]) -> dict[str, float]:
        """GPUs by owner."""
        gpus_by_owner: dict[str, float] = {}
        for job in running:
            part = quotas.held(job.requirement, self._capacity.gpu_bytes)
            gpus_by_owner[job.owner] = gpus_by_owner.get(job.owner, 0.0) + part
        return gpus_by_owner

    def of(
        self, waiting: Iterable[str], running: Sequence[RunningJob], now: datetime
    ) -> dict[str, UserAccount]:
        """Each user with work, with today's limits."""
        names = sorted({*waiting, *(job.owner for job in running)})
        limits = {name: self._given.quotas.get(name, Quota()) for name in names}
        weights = charging.weights({name: limits[name].share_pct for name in names})
        targets = charging.targets(weights, self._usage, CATCH_UP)
        mine: dict[str, list[RunningJob]] = {name: [] for name in names}
        for job in running:
            mine[job.owner].append(job)
        return {
            name: self._account(name, limits[name], weights[name], targets[name], mine[name], now)
            for name in names
        }

    def _account(
        self,
        name: str,
        quota: Quota,
        weight: float,
        target: float,
        jobs: Sequence[RunningJob],
        now: datetime,
    ) -> UserAccount:
        size = self._capacity.gpu_bytes
        held = sum(quotas.held(job.requirement, size) for job in jobs)
        return UserAccount(
            owner=name,
            quota=quota,
            weight=weight,
            usage=self._usage.get(name),
            target=target,
            gpus=sum(job.requirement.gpus for job in jobs),
            jobs=len(jobs),
            memory_bytes=sum(quotas.memory(job.requirement, size) for job in jobs),
            charge=held + self._outside.get(name, 0.0),
            capacity=self._capacity,
            budget=self._budget(name, quota, jobs, now),
        )

    def _budget(
        self, name: str, quota: Quota, jobs: Sequence[RunningJob], now: datetime
    ) -> Budget | None:
        if quota.gpu_minutes is None:
            return None
        lasts: list[tuple[float, timedelta | None]] = [
            (
                quotas.held(job.requirement, self._capacity.gpu_bytes),
                None if job.lasts is None else job.lasts - (now - job.started_at),
            )
            for job in jobs
        ]
        spent, zone = self._spent_s.get(name, 0.0) / 60, self._given.zone
        return charging.budget(quota.gpu_minutes, spent, lasts, charging.resets_at(now, zone), zone)
