"""Rows <-> facts: quotas, decayed usage, the daily ledger, and the limits and use of agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Model, Q, QuerySet

from monitor.facts.accounts import JOB_KINDS
from monitor.journal.rows import audit
from monitor.models import Agent, Claim
from monitor.runtime.rows.database import (
    MARK,
    PreparedQuery,
    compiled_for_times,
    compiled_once,
    upsert_rows,
)
from monitor.runtime.rows.item_isolation import Convert, ItemIsolation, convert_all
from monitor.thresholds import rows as thresholds
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.facts import people
from scheduler.facts.blockers import Blocker
from scheduler.facts.jobs import JobState
from scheduler.facts.people import Capacity
from scheduler.limits.quotas.policy.charging import Day, GpuUseSpan, day, part, usage_from_days
from scheduler.limits.quotas.policy.quotas import (
    DEFAULT_TIME_LIMIT,
    AgentJob,
    AgentLimits,
    AgentUse,
    QuotaPolicy,
    waits,
    with_defaults,
)
from scheduler.models import Attempt, DailyGpuUsage, HostCapacity, Job, Quota, UsageShare

# Older use counts for less than a thousandth.
HALF_LIVES = 10
# All but whose quota it is.
FIGURES = tuple(field.name for field in fields(people.Quota))
_JOBS_OF_AGENTS = Job.objects.filter(state=JobState.QUEUED.value, agent__isnull=False).exclude(
    state=JobState.FINISHED.value
)
_WAITING_OF_AGENTS = PreparedQuery(
    lambda _: _JOBS_OF_AGENTS.values_list("id", "agent", "priority", "gpus", "time_limit_s"), MARK
)


class Quotas:
    """All quotas, read once for many users."""

    def __init__(self) -> None:
        rows = list(Quota.objects.all())
        self._users = {row.user_id: row for row in rows if row.user_id is not None}
        self._groups = {row.group_id: row for row in rows if row.group_id is not None}
        self._default = [row for row in rows if row.user_id is None and row.group_id is None]
        users = User.objects.filter(pk__in=self._users) if self._users else User.objects.none()
        self._names = dict(users.values_list("username", "pk"))
        self._members = self._groups_of_people() if self._groups else {}
        operators = User.objects.filter(is_staff=True)
        self._operators = frozenset(operators.values_list("username", flat=True))
        self._policy = thresholds.current(QuotaPolicy)
        self._quotas: dict[str, people.Quota] = {}

    def of(self, name: str) -> people.Quota:
        """Their own, else the most generous of their groups', else the default quota.

        The policy's figures stand where that has none.
        """
        quota = self._quotas.get(name)
        if quota is None:
            is_operator = name in self._operators
            quota = with_defaults(_joined(self.rows(name)), self._policy, is_operator=is_operator)
            self._quotas[name] = quota
        return quota

    def rows(self, name: str) -> list[Quota]:
        """The rows that make up a user's quota."""
        if name in self._names:
            return [self._users[self._names[name]]]
        return [self._groups[group] for group in self._members.get(name, ())] or self._default

    def agreed(self) -> frozenset[str]:
        """Users with a quota of their own or of a group."""
        return frozenset(self._names) | frozenset(self._members)

    def _groups_of_people(self) -> dict[str, list[int]]:
        groups: dict[str, list[int]] = {}
        pairs = User.objects.filter(groups__in=self._groups).values_list("username", "groups")
        for name, group in pairs:
            if group in self._groups:
                groups.setdefault(name, []).append(group)
        return groups


_OF_PERSON = PreparedQuery(
    lambda person: Quota.objects.filter(Q(user=person) | Q(user__isnull=True)), MARK
)


def of_person(person: User) -> people.Quota:
    """The same for one user, without reading all quotas."""
    rows = _OF_PERSON.rows(person.pk)
    own = [row for row in rows if row.user_id is not None]
    default = [row for row in rows if row.user_id is None and row.group_id is None]
    chosen = own or _of_groups(rows, person) or default
    policy = thresholds.current(QuotaPolicy)
    return with_defaults(_joined(chosen), policy, is_operator=person.is_staff)


def _of_groups(rows: Sequence[Quota], person: User) -> list[Quota]:
    """The quotas of this user's groups, which are read only if groups have quotas."""
    grouped = [row for row in rows if row.group_id is not None]
    if not grouped:
        return []
    theirs = set(person.groups.values_list("pk", flat=True))
    return [row for row in grouped if row.group_id in theirs]


def _joined(rows: Sequence[Quota]) -> people.Quota:
    facts = [people.Quota(**{name: getattr(row, name) for name in FIGURES}) for row in rows]
    return most_generous(facts) if facts else people.Quota()


def most_generous(quotas: Sequence[people.Quota]) -> people.Quota:
    """The highest value of each limit, and the smallest reserved part. None = no limit.

    The share is a limit only if all say so.
    """
    best: dict[str, Any] = {
        name: _most([getattr(quota, name) for quota in quotas]) for name in FIGURES
    }
    best["reserved_pct"] = min(quota.reserved_pct for quota in quotas)
    best["share_is_limit"] = all(quota.share_is_limit for quota in quotas)
    return people.Quota(**best)


def _most(figures: Iterable[float | None]) -> float | None:
    values = list(figures)
    return None if None in values else max(figure for figure in values if figure is not None)


_USED = ("usage", "charge", "outside", "seen_s", "known_s", "owed_s")


def charged_until(host: str) -> datetime | None:
    """Until when the use of a host's GPUs has been charged."""
    return next((row.at for row in _shared_out(host)), None)


@compiled_once
def _shared_out(host: str) -> QuerySet[HostCapacity]:
    return HostCapacity.objects.filter(pk=host)


def set_charged(host: str, at: datetime, capacity: Capacity) -> None:
    row = HostCapacity(
        host=host, at=at, gpu_uuids=list(capacity.gpu_uuids), gpu_bytes=capacity.gpu_bytes
    )
    upsert_rows([row], ("host",), ("at", "gpu_uuids", "gpu_bytes"))


def used(host: str) -> dict[str, UsageShare]:
    return {row.owner: row for row in _used_rows(host)}


@compiled_once
def _used_rows(host: str) -> QuerySet[UsageShare]:
    return UsageShare.objects.filter(host=host)


def set_used(rows: Sequence[UsageShare], now: datetime, isolation: ItemIsolation) -> None:
    """Write all rows at once; if that fails, one by one."""

    def write(written: Sequence[UsageShare]) -> None:
        upsert_rows(written, ("host", "owner"), _USED)

    if not isolation.attempt("usage of all owners", lambda: write(rows), now):
        isolation.each(rows, lambda row: f"usage row of {row.owner}", lambda row: write([row]), now)


def forget(rows: Iterable[UsageShare]) -> None:
    """Delete the rows of owners whose usage has decayed."""
    if numbers := [row.pk for row in rows if row.pk]:
        UsageShare.objects.filter(pk__in=numbers).delete()


def decayed_usage_at(
    at: datetime, gpus: int, half_life_s: float, zone: str, host: str = ""
) -> dict[str, float] | None:
    """Each user's usage at a past instant, from the daily ledger; None = it begins later.

    Of the GPUs of one host, or of all hosts.
    """
    rows = DailyGpuUsage.objects.filter(from_at__lt=at)
    rows = rows.filter(host=host) if host else rows
    if not gpus or not rows.exists():
        return None
    recent = rows.filter(from_at__gt=at - timedelta(seconds=HALF_LIVES * half_life_s))
    days: dict[str, list[tuple[Day, float]]] = {}
    for owner, from_at, jobs, outside in recent.values_list(
        "owner", "from_at", "job_s", "outside_s"
    ):
        days.setdefault(owner, []).append((day(from_at, zone), jobs + outside))
    return {
        owner: usage_from_days(own_days, at, gpus, half_life_s) for owner, own_days in days.items()
    }


def holds(
    host: str,
    since: datetime,
    sizes: Mapping[str, int | None],
    convert: Convert = convert_all,
) -> list[GpuUseSpan]:
    """The claims of jobs on the host's GPUs since then; `sizes`: the memory of each GPU."""

    def span(row: tuple[Any, ...]) -> GpuUseSpan:
        owner, job_ref, memory_bytes, exclusive, gpu_uuid, from_at, until_at = row
        return GpuUseSpan(
            owner=owner,
            job_ref=job_ref,
            part=part(memory_bytes, exclusive, sizes.get(gpu_uuid)),
            from_at=from_at,
            until_at=until_at,
        )

    claims = _held_since(host, since)
    spans = convert(claims, lambda row: f"claim of job {row[1]} on {row[4]}", span)
    return [span for _, span in spans]


@compiled_for_times
def _held_since(host: str, since: datetime) -> QuerySet[Any, tuple[Any, ...]]:
    rows = Claim.objects.filter(host=host, kind__in=JOB_KINDS)
    rows = rows.filter(Q(until_at__isnull=True) | Q(until_at__gt=since)).order_by()
    return rows.values_list(
        "owner", "job_ref", "memory_bytes", "exclusive", "gpu_uuid", "from_at", "until_at"
    )


def debit(
    host: str,
    from_at: datetime,
    jobs: Mapping[str, float],
    outside: Mapping[str, float],
    now: datetime,
    isolation: ItemIsolation,
) -> None:
    """Add GPU-seconds by owner to a day of this host's ledger. This host is the only writer."""
    owners = sorted(jobs.keys() | outside.keys())
    if not owners:
        return
    stored = {row.owner: row for row in _of_day(host, from_at)}

    def name(owner: str) -> str:
        return f"ledger of {owner}"

    def add(owner: str) -> DailyGpuUsage:
        row = stored.get(owner) or DailyGpuUsage(host=host, owner=owner, from_at=from_at)
        # A new object: the action may run again if that of another owner fails.
        return DailyGpuUsage(
            pk=row.pk,
            host=host,
            owner=owner,
            from_at=from_at,
            job_s=row.job_s + jobs.get(owner, 0.0),
            outside_s=row.outside_s + outside.get(owner, 0.0),
        )

    def write(rows: Sequence[DailyGpuUsage]) -> None:
        upsert_rows(rows, ("from_at", "owner", "host"), ("job_s", "outside_s"))

    added = [row for _, row in isolation.convert(owners, name, add, now)]
    if not isolation.attempt("ledger of all owners", lambda: write(added), now):
        isolation.each(
            added, lambda row: f"ledger row of {row.owner}", lambda row: write([row]), now
        )


@compiled_for_times
def _of_day(host: str, from_at: datetime) -> QuerySet[DailyGpuUsage]:
    return DailyGpuUsage.objects.filter(host=host, from_at=from_at)


def spent(from_at: datetime) -> dict[str, DailyGpuUsage]:
    """Usage of each user on that day, on all hosts together."""
    by_owner: dict[str, DailyGpuUsage] = {}
    for row in DailyGpuUsage.objects.filter(from_at=from_at):
        sums = by_owner.setdefault(row.owner, DailyGpuUsage(owner=row.owner, from_at=from_at))
        sums.job_s += row.job_s
        sums.outside_s += row.outside_s
    return by_owner


def too_old(keep: RetentionPeriods, now: datetime) -> Iterator[QuerySet[Model]]:
    """Expired days, and rows of hosts that were renamed or removed."""
    yield DailyGpuUsage.objects.filter(from_at__lt=now - keep.hours)
    silent = HostCapacity.objects.filter(at__lt=now - keep.silent_hosts)
    if hosts := list(silent.values_list("host", flat=True)):
        yield UsageShare.objects.filter(host__in=hosts)
        yield silent.filter(host__in=hosts)


def agent_limits(agent: Agent) -> AgentLimits:
    return AgentLimits(
        id=agent.pk,
        name=agent.name,
        running_jobs=agent.running_jobs,
        gpu_minutes=agent.gpu_minutes,
    )


def agent_blockers(now: datetime, others: Collection[int]) -> dict[int, tuple[Blocker, ...]]:
    """Blockers of waiting jobs by the limits of their agents. others: jobs that wait anyway."""
    jobs = [_agent_job(row) for row in _WAITING_OF_AGENTS.rows() if row[0] not in others]
    if not jobs:
        return {}
    agents = Agent.objects.filter(pk__in={job.agent for job in jobs})
    limits = {agent.pk: agent_limits(agent) for agent in agents}
    return waits([job for job in jobs if job.agent in limits], limits, agent_uses(limits, now))


def _agent_job(row: Sequence[Any]) -> AgentJob:
    id_, agent, priority, gpus, limit_s = row
    limit = None if limit_s is None else timedelta(seconds=limit_s)
    return AgentJob(id=id_, agent=agent, priority=priority, gpus=gpus, time_limit=limit)


def agent_uses(agents: Iterable[int], now: datetime) -> dict[int, AgentUse]:
    """The current use of each agent, and its use since midnight."""
    local = now.astimezone(ZoneInfo(settings.TIME_ZONE))
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    running: Counter[int] = Counter()
    spent: Counter[int] = Counter()
    committed: Counter[int] = Counter()
    attempts = Attempt.objects.filter(
        Q(ended_at=None) | Q(ended_at__gt=midnight), job__agent__in=list(agents)
    )
    columns = ("job__agent", "placed_at", "ended_at", "gpu_uuids", "job__time_limit_s")
    for agent, placed_at, ended_at, uuids, limit_s in attempts.values_list(*columns):
        until = ended_at or now
        gpus = len(uuids)
        spent[agent] += gpus * max(0.0, (until - max(placed_at, midnight)).total_seconds()) / 60
        if ended_at is None:
            running[agent] += 1
            limit = DEFAULT_TIME_LIMIT.total_seconds() if limit_s is None else limit_s
            left_s = max(0.0, limit - (now - placed_at).total_seconds())
            committed[agent] += gpus * left_s / 60
    return {
        agent: AgentUse(
            running=running[agent],
            spent=spent[agent],
            committed=committed[agent],
            resets_at=midnight + timedelta(days=1),
        )
        for agent in agents
    }


def stop_agent(agent: Agent, now: datetime) -> QuerySet[Job]:
    """Refuse the agent's requests. Returns its open jobs, for the caller to cancel."""
    Agent.objects.filter(pk=agent.pk, stopped_at=None).update(stopped_at=now)
    return Job.objects.filter(agent=agent).exclude(state=JobState.FINISHED.value)


def resume_agent(agent: Agent) -> None:
    Agent.objects.filter(pk=agent.pk).update(stopped_at=None)


# Changes of quotas by operators. Each change is audited.


def save(quota: Quota, *, by: str, now: datetime) -> None:
    """Store a new or changed quota."""
    before = Quota.objects.filter(pk=quota.pk).first() if quota.pk else None
    with transaction.atomic():
        quota.save()
        action, word = ("QUOTA_CHANGED", "changed") if before else ("QUOTA_SET", "set")
        _record(action, word, quota, _values(before) if before else None, _values(quota), by, now)


def remove(quota: Quota, *, by: str, now: datetime) -> None:
    with transaction.atomic():
        _record("QUOTA_REMOVED", "removed", quota, _values(quota), None, by, now)
        quota.delete()


@transaction.atomic
def set_limits(user: User, limits: Mapping[str, Any], *, by: str, now: datetime) -> Quota:
    """Change limits of the user's own quota, which is made if there is none; None = no limit.

    Raises ValidationError.
    """
    quota = Quota.objects.select_for_update().filter(user=user).first() or Quota(user=user)
    for name, value in limits.items():
        setattr(quota, name, value)
    quota.full_clean()
    save(quota, by=by, now=now)
    return quota


def copy(source: User, target: User, *, by: str, now: datetime) -> Quota | None:
    """Give a user the limits of another user's own quota. None: the other has none."""
    quota = Quota.objects.filter(user=source).first()
    if quota is None:
        return None
    return set_limits(target, _values(quota), by=by, now=now)


def _values(quota: Quota) -> dict[str, Any]:
    return {name: getattr(quota, name) for name in FIGURES}


def _record(
    action: str, word: str, quota: Quota, before: Any, after: Any, by: str, now: datetime
) -> None:
    text = f"{by} {word} the quota of {quota.subject}"
    subject = f"quota of {quota.subject}"
    audit.note(action, text, by=by, now=now, subject=subject, before=before, after=after)
