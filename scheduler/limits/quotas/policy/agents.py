"""Policy: what an agent of a user may submit, and which of its jobs must wait.

An agent is a program with a token of its own. Its jobs are the user's jobs and count against the
user's quota and fair share; these limits are added to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import Struct

from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import PRIORITIES, NewJob, Refusal
from scheduler.facts.units import minutes_taken

MOST_PRIORITY = 3
DEFAULT_PRIORITY = 1
# The planner serves other jobs first, whatever the priority: that orders the agent's own jobs.
PRIORITY_IN_PLANS = 1
DEFAULT_TIME_LIMIT = timedelta(hours=1)
SLACK = 1e-6


class AgentLimits(Struct, frozen=True, kw_only=True):
    """The limits of an agent. gpu_minutes: a day; a shared GPU counts whole."""

    id: int
    name: str
    running_jobs: int
    gpu_minutes: int


class AgentUse(Struct, frozen=True, kw_only=True):
    """Placed jobs of an agent, and its GPU-minutes of the day.

    committed: what its placed jobs may still use until their time limits. resets_at: the day's end.
    """

    running: int = 0
    spent: float = 0.0
    committed: float = 0.0
    resets_at: datetime | None = None


class AgentJob(Struct, frozen=True, kw_only=True):
    """A waiting job of an agent that no other condition keeps waiting."""

    id: int
    agent: int
    priority: int
    gpus: int
    time_limit: timedelta | None

    @property
    def gpu_minutes(self) -> float:
        return self.gpus * (self.time_limit or DEFAULT_TIME_LIMIT).total_seconds() / 60


def bounded(new: NewJob, limits: AgentLimits) -> NewJob:
    """The job as an agent may run it: preemptible, without a grace period of its own, with a time
    limit, and of the lowest priority unless it has one.
    """
    return replace(
        new,
        agent=limits.id,
        priority=new.priority if new.priority_chosen else DEFAULT_PRIORITY,
        priority_chosen=True,
        time_limit=new.time_limit or DEFAULT_TIME_LIMIT,
        yield_options=replace(new.yield_options, preemptible=True, grace=None),
    )


def refusals(new: NewJob, limits: AgentLimits, index: int | None = None) -> list[Refusal]:
    """The refusals of a bounded job."""
    refusals = []
    if new.priority > MOST_PRIORITY:
        most = f"{MOST_PRIORITY} ({PRIORITIES[MOST_PRIORITY]})"
        text = f"An agent may use priorities up to {most}."
        refusals.append(Refusal(field="priority", text=text, index=index))
    if new.interactive:
        text = "An agent can't open a terminal."
        refusals.append(Refusal(field="interactive", text=text, index=index))
    minutes = new.requirement.gpus * (new.time_limit or DEFAULT_TIME_LIMIT).total_seconds() / 60
    if minutes > limits.gpu_minutes + SLACK:
        text = (
            f"The job may take {minutes_taken(minutes):g} GPU-minutes; this agent has"
            f" {limits.gpu_minutes} a day. Give it a shorter time limit or fewer GPUs."
        )
        refusals.append(Refusal(field="time_limit", text=text, index=index))
    return refusals


def waits(
    jobs: Iterable[AgentJob], limits: Mapping[int, AgentLimits], uses: Mapping[int, AgentUse]
) -> dict[int, tuple[Blocker, ...]]:
    """Blockers of the jobs beyond their agent's limits; the first ones take what is left."""
    by_agent: dict[int, list[AgentJob]] = defaultdict(list)
    for job in jobs:
        by_agent[job.agent].append(job)
    blockers: dict[int, tuple[Blocker, ...]] = {}
    for agent, waiting in by_agent.items():
        use, limit = uses.get(agent, AgentUse()), limits[agent]
        free = limit.running_jobs - use.running
        left = limit.gpu_minutes - use.spent - use.committed
        for job in sorted(waiting, key=lambda job: (-job.priority, job.id)):
            if free <= 0:
                blockers[job.id] = (_too_many(limit),)
            elif job.gpus and job.gpu_minutes > left + SLACK:
                blockers[job.id] = (_budget(limit, use),)
            else:
                free, left = free - 1, left - job.gpu_minutes
    return blockers


def _too_many(limit: AgentLimits) -> Blocker:
    return Blocker(
        code=BlockerCode.AGENT_MAX_JOBS,
        tier=Tier.MY_LIMITS,
        holder=limit.name,
        requested="1 place",
        available=f"0 of {limit.running_jobs}",
        details=details(most=limit.running_jobs),
    )


def _budget(limit: AgentLimits, use: AgentUse) -> Blocker:
    return Blocker(
        code=BlockerCode.AGENT_BUDGET,
        tier=Tier.MY_LIMITS,
        holder=limit.name,
        requested="GPU-minutes",
        until=use.resets_at,
        details=details(limit=limit.gpu_minutes),
    )
