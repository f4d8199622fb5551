"""A machine is played for days with a flood of small jobs: large ones must get their turn."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.people import Capacity, UserAccount
from scheduler.facts.plans import PlanPolicy, RunningJob, Slots
from scheduler.queue.planner.placement import after_placement
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, slot

HOUR = timedelta(hours=1)
GPUS = 4
BIG = 1


class Machine:
    """Four GPUs; whoever ends makes room at once. `limited`: whether the flood has time limits."""

    def __init__(self, flood: Requirement, *, limited: bool) -> None:
        self._chance = random.Random(7)
        self._flood, self._limited = flood, limited
        self._gpus = [slot(index) for index in range(GPUS)]
        self._ends: list[tuple[datetime, RunningJob]] = []
        self._queue: list[QueuedJob] = []
        self._next = 100
        self.began: dict[int, datetime] = {}

    def runs_for_ever(self, owner: str) -> None:
        """Somebody has a GPU and keeps it."""
        job = QueuedJob(id=2, owner=owner, priority=3, submitted_at=NOW, requirement=WHOLE)
        self._gpus[0] = after_placement(self._gpus[0], job.id, WHOLE)
        self._ends.append((NOW + 10_000 * HOUR, _running(job, NOW)))

    def play(self, big: QueuedJob, hours: int) -> timedelta | None:
        """How long the big job waited, among a flood that never ebbs."""
        now, until = NOW, NOW + hours * HOUR
        self._top_up(now)
        self._pass(now)
        self._queue.append(big)
        while now < until and big.id not in self.began:
            self._top_up(now)
            self._pass(now)
            now = min((end for end, _ in self._ends), default=now + HOUR)
            for end, job in [pair for pair in self._ends if pair[0] <= now]:
                self._ends.remove((end, job))
                self._gpus = [gpu.without({job.id}) for gpu in self._gpus]
        return self.began[big.id] - NOW if big.id in self.began else None

    def _top_up(self, now: datetime) -> None:
        while len(self._queue) < 40:
            self._next += 1
            limit = timedelta(hours=self._chance.choice((1, 2, 3))) if self._limited else None
            owner = self._chance.choice(("bob", "carol", "dave"))
            self._queue.append(
                QueuedJob(
                    id=self._next,
                    owner=owner,
                    priority=3,
                    submitted_at=now,
                    requirement=self._flood,
                    time_limit=limit,
                )
            )

    def _pass(self, now: datetime) -> None:
        running = tuple(job for _, job in self._ends)
        slots = Slots(
            host="gpubox", gpus=tuple(self._gpus), running=running, people=self._people(running)
        )
        waiting = {job.id: job for job in self._queue}
        for placement in plan(self._queue, slots, PlanPolicy(), now).placements:
            job = waiting[placement.job_id]
            self._queue.remove(job)
            self.began[job.id] = now
            self._gpus = [
                after_placement(gpu, job.id, job.requirement)
                if gpu.gpu_uuid in placement.gpu_uuids
                else gpu
                for gpu in self._gpus
            ]
            took = job.time_limit or timedelta(hours=self._chance.choice((1, 2, 3)))
            self._ends.append((now + took * self._chance.uniform(0.3, 1), _running(job, now)))

    def _people(self, running: tuple[RunningJob, ...]) -> dict[str, UserAccount]:
        uuids = tuple(gpu.gpu_uuid for gpu in self._gpus)
        shared = Capacity(gpu_uuids=uuids, gpu_bytes=80 * GIB)
        return {
            name: UserAccount(
                owner=name,
                target=0.25,
                charge=float(sum(job.requirement.gpus for job in running if job.owner == name)),
                gpus=sum(job.requirement.gpus for job in running if job.owner == name),
                capacity=replace(shared),
            )
            for name in ("alice", "bob", "carol", "dave")
        }


def _running(job: QueuedJob, now: datetime) -> RunningJob:
    return RunningJob(
        id=job.id,
        owner=job.owner,
        priority=job.priority,
        requirement=job.requirement,
        gpu_uuids=(),
        started_at=now,
        lasts=job.lasts,
    )


def _big(**asked: object) -> QueuedJob:
    return QueuedJob(
        id=BIG,
        owner="alice",
        priority=3,
        submitted_at=NOW,
        requirement=Requirement(**asked),  # type: ignore[arg-type]
        time_limit=4 * HOUR,
    )


WHOLE, PART = Requirement(exclusive=True), Requirement(memory_bytes=20 * GIB)


@pytest.mark.parametrize("flood", [WHOLE, PART], ids=["whole", "part"])
def test_a_job_for_all_gpus_waits_no_longer_than_the_longest_that_runs(flood: Requirement) -> None:
    waited = Machine(flood, limited=True).play(_big(gpus=GPUS, exclusive=True), hours=100)

    assert waited is not None
    assert waited <= 3 * HOUR


@pytest.mark.parametrize("flood", [WHOLE, PART], ids=["whole", "part"])
def test_among_jobs_of_unknown_length_it_gets_its_gpus_too(flood: Requirement) -> None:
    waited = Machine(flood, limited=False).play(_big(gpus=GPUS, exclusive=True), hours=100)

    assert waited is not None
    assert waited <= 4 * HOUR


def test_a_job_that_wants_a_gpu_alone_gets_one_among_many_that_share() -> None:
    waited = Machine(PART, limited=True).play(_big(exclusive=True), hours=100)

    assert waited is not None
    assert waited <= 3 * HOUR


def test_it_gets_them_though_its_owner_has_all_that_they_should_have() -> None:
    machine = Machine(WHOLE, limited=True)
    machine.runs_for_ever("alice")
    waited = machine.play(_big(gpus=2, exclusive=True), hours=60)

    assert waited is not None
    assert 24 * HOUR < waited <= 28 * HOUR
