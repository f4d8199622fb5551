"""1000 submissions of an agent hardly delay other users: the real planner on a simulated clock."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from reports.capacity.policy.demand import RecordedJob
from reports.capacity.policy.replay import Replay, ReplayInput
from scheduler.facts.jobs import QueuedJob
from scheduler.limits.quotas.policy.quotas import (
    DEFAULT_PRIORITY,
    MOST_PRIORITY,
    PRIORITY_IN_PLANS,
    AgentJob,
    AgentLimits,
    AgentUse,
    waits,
)
from tests.builders import NOW
from tests.reports.capacity.recordings import ALONE, HOUR, known_gpu, recorded

pytestmark = pytest.mark.slow
GPUS = 8
AGENT = AgentLimits(id=1, name="helper", running_jobs=2, gpu_minutes=100_000)
FIRST_OF_AGENT = 100_000
MOST_RATIO = 1.05


class WithAgent(Replay):
    """A replay in which jobs from FIRST_OF_AGENT on keep to the limits of the agent."""

    def _ready(self, now: datetime) -> list[RecordedJob]:
        ready = super()._ready(now)
        running = sum(number >= FIRST_OF_AGENT for number in self._running)
        jobs = [
            AgentJob(id=job.id, agent=1, priority=job.priority, gpus=1, time_limit=job.lasts)
            for job in ready
            if job.id >= FIRST_OF_AGENT
        ]
        blocked = waits(jobs, {1: AGENT}, {1: AgentUse(running=running)})
        return [job for job in ready if job.id not in blocked]

    def _queued(self, job: RecordedJob) -> QueuedJob:
        queued = super()._queued(job)
        return (
            queued
            if job.id < FIRST_OF_AGENT
            else dataclasses.replace(queued, priority=PRIORITY_IN_PLANS)
        )

    def _start(self, job_id: int, gpu_uuids: tuple[str, ...], now: datetime) -> None:
        super()._start(job_id, gpu_uuids, now)
        run = self._running[job_id]
        if job_id >= FIRST_OF_AGENT:
            run.facts = replace(run.facts, priority=PRIORITY_IN_PLANS, is_of_agent=True)


def of_people() -> list[RecordedJob]:
    """Three days of four users, who leave the GPUs busy for three quarters of the time."""
    chance = random.Random(7)
    return [
        recorded(
            number,
            at_h=chance.uniform(0, 72),
            hours=chance.uniform(0.2, 2.0),
            owner=chance.choice(["bob", "carol", "dave", "alice"]),
        )
        for number in range(1, 394)
    ]


def of_agent(priority: int = DEFAULT_PRIORITY) -> list[RecordedJob]:
    """All at the same moment."""
    limit = timedelta(hours=1)
    return [
        recorded(
            FIRST_OF_AGENT + number, at_h=6, hours=0.5, priority=priority, lasts=limit,
            preemptible=True, requirement=ALONE, is_counted=False,
        )
        for number in range(1000)
    ]  # fmt: skip


def p90_of_people(jobs: Sequence[RecordedJob], kind: type[Replay]) -> float:
    replay = kind(ReplayInput(jobs=tuple(jobs)), [known_gpu(i) for i in range(GPUS)])
    end = NOW + 100 * HOUR
    while replay.advance():
        if replay._now is not None and replay._now > end:
            break
    return replay.figures().p90_s


@pytest.mark.parametrize("priority", [DEFAULT_PRIORITY, MOST_PRIORITY])
def test_a_thousand_jobs_of_an_agent_leave_the_waits_of_others_as_they_are(priority: int) -> None:
    alone = p90_of_people(of_people(), Replay)
    beside = p90_of_people([*of_people(), *of_agent(priority)], WithAgent)

    assert alone > 60, "without waits there is nothing to compare"
    assert beside <= MOST_RATIO * alone


def test_the_same_jobs_without_the_limits_would_delay_others() -> None:
    """Shows that the machine is busy enough for a difference."""
    ordinary = [replace(job, priority=3, preemptible=False) for job in of_agent()]
    alone = p90_of_people(of_people(), Replay)

    assert p90_of_people([*of_people(), *ordinary], Replay) > 1.5 * alone
