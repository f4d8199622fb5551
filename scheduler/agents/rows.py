"""Rows of agents: their limits, what they use, and stopping them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db.models import Q, QuerySet

from monitor.models import Agent
from monitor.runtime.rows.prepared import MARK, PreparedQuery
from scheduler.agents.policy import DEFAULT_TIME_LIMIT, AgentJob, AgentLimits, AgentUse, waits
from scheduler.facts.blockers import Blocker
from scheduler.facts.jobs import JobState
from scheduler.models import Attempt, Job

_WAITING = Job.objects.filter(state=JobState.QUEUED.value, agent__isnull=False).exclude(
    state=JobState.FINISHED.value
)
_OF_AGENTS = PreparedQuery(
    lambda _: _WAITING.values_list("id", "agent", "priority", "gpus", "time_limit_s"), MARK
)


def limits_of(agent: Agent) -> AgentLimits:
    return AgentLimits(
        id=agent.pk,
        name=agent.name,
        running_jobs=agent.running_jobs,
        gpu_minutes=agent.gpu_minutes,
    )


def waiting(now: datetime, others: Collection[int]) -> dict[int, tuple[Blocker, ...]]:
    """Blockers of waiting jobs by the limits of their agents. others: jobs that wait anyway."""
    jobs = [_job(row) for row in _OF_AGENTS.rows() if row[0] not in others]
    if not jobs:
        return {}
    agents = Agent.objects.filter(pk__in={job.agent for job in jobs})
    limits = {agent.pk: limits_of(agent) for agent in agents}
    return waits([job for job in jobs if job.agent in limits], limits, uses(limits, now))


def _job(row: Sequence[Any]) -> AgentJob:
    id_, agent, priority, gpus, limit_s = row
    limit = None if limit_s is None else timedelta(seconds=limit_s)
    return AgentJob(id=id_, agent=agent, priority=priority, gpus=gpus, time_limit=limit)


def uses(agents: Iterable[int], now: datetime) -> dict[int, AgentUse]:
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


def stop(agent: Agent, now: datetime) -> QuerySet[Job]:
    """Refuse the agent's requests. Returns its open jobs, for the caller to cancel."""
    Agent.objects.filter(pk=agent.pk, stopped_at=None).update(stopped_at=now)
    return Job.objects.filter(agent=agent).exclude(state=JobState.FINISHED.value)


def resume(agent: Agent) -> None:
    Agent.objects.filter(pk=agent.pk).update(stopped_at=None)
