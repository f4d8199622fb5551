"""A machine whose people always have more jobs waiting, run by the real planner in made-up time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.people import Capacity, UserAccount
from scheduler.facts.plans import Holder, PlanPolicy, RunningJob, Slot, Slots
from scheduler.limits.quotas.policy import charging
from scheduler.limits.quotas.policy.charging import GpuUseSpan
from scheduler.limits.quotas.policy.quotas import CATCH_UP, ENTRY_S, QuotaPolicy
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, gpu_uuid, slot

GPUS = 4
ALONE = Requirement(gpus=1, exclusive=True)
HOUR_S = 3600.0
WAITING = 5


@dataclass
class Box:
    """`outside`: GPUs that people use without a job, for ever. Jobs take `hours`."""

    outside: Mapping[str, int] = field(default_factory=dict)
    hours: tuple[float, float] = (1.0, 3.0)
    seed: int = 1
    policy: QuotaPolicy = field(default_factory=QuotaPolicy)
    now: datetime = NOW
    people: list[str] = field(default_factory=list)
    usage: dict[str, float] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    held: list[GpuUseSpan] = field(default_factory=list)
    running: dict[int, tuple[RunningJob, datetime]] = field(default_factory=dict)
    queue: list[QueuedJob] = field(default_factory=list)
    starts: list[tuple[datetime, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._number = 0
        self._at_0 = self.now
        self._half_life_s = self.policy.half_life_hours * HOUR_S

    def comes(self, name: str) -> None:
        self.people.append(name)

    def run(self, until_h: float) -> None:
        """From the end of one job to the next."""
        until = self._at_0 + timedelta(hours=until_h)
        while self.now < until:
            self.serve()
            ends = [end for _, end in self.running.values()]
            self._pass(min([until, *ends]))
            self.running = {
                number: (job, end) for number, (job, end) in self.running.items() if end > self.now
            }

    def serve(self) -> None:
        """One pass of the planner, with everybody's queue filled up."""
        for name in self.people:
            waiting = sum(job.owner == name for job in self.queue)
            self.queue += [self._job(name) for _ in range(WAITING - waiting)]
        made = plan(self.queue, self._slots(), PlanPolicy(), self.now)
        placed = {p.job_id: p.gpu_uuids for p in made.placements}
        for job in [job for job in self.queue if job.id in placed]:
            self._start(job, placed[job.id])
        self.queue = [job for job in self.queue if job.id not in placed]

    def have(self, name: str) -> int:
        """GPUs, with those outside of jobs."""
        return self.outside.get(name, 0) + sum(j.owner == name for j, _ in self.running.values())

    def part(self, name: str, since: Mapping[str, float] | None = None) -> float:
        """Of all that was taken (since then), in percent."""
        before = since or {}
        took = {n: self.took_s[n] - before.get(n, 0.0) for n in self.took_s}
        return 100 * took.get(name, 0.0) / sum(took.values())

    def _start(self, job: QueuedJob, uuids: tuple[str, ...]) -> None:
        end = self.now + timedelta(seconds=self._random.uniform(*self.hours) * HOUR_S)
        began = RunningJob(
            id=job.id, owner=job.owner, priority=3, requirement=ALONE, gpu_uuids=uuids,
            started_at=self.now,
        )  # fmt: skip
        self.running[job.id] = (began, end)
        self.starts.append((self.now, job.owner))
        self.held.append(GpuUseSpan(job.owner, str(job.id), 1.0, self.now, end))
        self._pay(self.now - timedelta(microseconds=1), self.now)

    def _pass(self, until: datetime) -> None:
        seconds = (until - self.now).total_seconds()
        for name in {*self.people, *self.outside}:
            self.took_s[name] = self.took_s.get(name, 0.0) + self.have(name) * seconds
        kept = charging.unpaid_seconds(self.held, self.now, until, ENTRY_S)
        rates = {
            name: (self.outside.get(name, 0) + kept.get(name, 0.0) / max(1e-9, seconds)) / GPUS
            for name in {*self.people, *self.outside}
        }
        self.usage = charging.advance(self.usage, rates, seconds, self._half_life_s)
        if seconds:
            self._pay(self.now, until)
        self.now = until
        self.held = [hold for hold in self.held if hold.until_at is None or hold.until_at > until]

    def _pay(self, since: datetime, until: datetime) -> None:
        for name, count in charging.fees(self.held, since, until, ENTRY_S).items():
            fee = charging.entry(count / GPUS, ENTRY_S, self._half_life_s)
            self.usage[name] = max(0.0, self.usage.get(name, 0.0) + fee)

    def _job(self, owner: str) -> QueuedJob:
        self._number += 1
        return QueuedJob(
            id=self._number, owner=owner, priority=3, submitted_at=self.now, requirement=ALONE
        )

    def _slots(self) -> Slots:
        jobs = {uuid: job.id for job, _ in self.running.values() for uuid in job.gpu_uuids}
        free = GPUS - sum(self.outside.values())
        return Slots(
            host="gpubox",
            gpus=tuple(self._slot(i, jobs.get(gpu_uuid(i)), i < free) for i in range(GPUS)),
            running=tuple(job for job, _ in self.running.values()),
            people=self._accounts(),
        )

    def _slot(self, index: int, job: int | None, is_ours: bool) -> Slot:
        if not is_ours:
            return slot(index, free_bytes=0, foreign=(Holder(name="python", memory_bytes=GIB),))
        return slot(index) if job is None else slot(index, jobs=(job,), exclusive=True)

    def _accounts(self) -> dict[str, UserAccount]:
        weights = charging.weights(dict.fromkeys(self.people))
        targets = charging.targets(weights, self.usage, CATCH_UP)
        here = Capacity(gpu_uuids=tuple(gpu_uuid(i) for i in range(GPUS)), gpu_bytes=80 * GIB)
        return {
            name: UserAccount(
                owner=name,
                weight=weights[name],
                usage=self.usage.get(name),
                target=targets[name],
                gpus=self.have(name) - self.outside.get(name, 0),
                charge=float(self.have(name)),
                capacity=here,
            )
            for name in self.people
        }
