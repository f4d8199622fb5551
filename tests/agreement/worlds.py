"""Random machines with users, quotas, windows, processes and jobs, at random instants."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from pathlib import Path
from random import Random
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from monitor.facts.readings import ProcessReading
from monitor.gpus.rows import snapshot as snapshots
from scheduler.dispatch.steps import preview
from scheduler.execution.steps.progress import ProgressStep
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import Dependency, DependencyKind, JobState, Requirement
from scheduler.facts.plans import Plan
from scheduler.jobs.pages import timeline
from scheduler.models import HostCapacity, Job, Quota, TimeWindow, UsageShare
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner.plan import plan
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot

GPUS = 4
UUIDS = [gpu_uuid(index) for index in range(GPUS)]


def instant(seed: int) -> datetime:
    return NOW + timedelta(seconds=Random(seed).randrange(60, 18_000))


def build(seed: int, users: tuple[User, ...], data: Path) -> datetime:
    """The rows of a machine of four GPUs and of its users, as the loops left them at `now`."""
    chance, now = Random(seed), instant(seed)
    HostCapacity.objects.create(host="gpubox", at=now, gpu_uuids=UUIDS, gpu_bytes=80 * GIB)
    for user in users:
        _rights(chance, user)
    _running(chance, users, data)
    _waiting(chance, users, now)
    outside = _outside(chance, users)
    _observe(outside, data, now)
    before = now - timedelta(seconds=2)
    while made := _plan(now).placements:
        for placement in made:
            jobs_made.start(Job.objects.get(pk=placement.job_id), placement.gpu_uuids, before)
        _observe(outside, data, now)
    forget()
    return now


def _plan(now: datetime) -> Plan:
    """A pass of the dispatcher, which stores why the other jobs wait."""
    forget()
    given = preview.plan_input("gpubox", now)
    made = plan(given.queue, given.slots, given.policy, now, given.rules)
    for pk, blockers in made.blockers.items():
        Job.objects.filter(pk=pk).update(blockers=list(map(stored_blockers.body, blockers)))
    return made


def forget() -> None:
    for cache in (preview, preview, timeline):
        cache.forget()


def _rights(chance: Random, user: User) -> None:
    Quota.objects.create(
        user=user,
        share_pct=chance.choice((None, None, 0, 10, 33.3, 60, 100)),
        share_is_limit=chance.random() < 0.2,
        gpus=chance.choice((None, None, None, 1, 2)),
        gpu_minutes=chance.choice((None, None, None, 0.5, 600)),
    )
    UsageShare.objects.create(
        host="gpubox", owner=user.username, usage=chance.random(), outside=chance.random(),
        seen_s=100, known_s=100,
    )  # fmt: skip
    if chance.random() < 0.3:
        hour = chance.randrange(24)
        TimeWindow.objects.create(
            user=user, gpu_uuids=[chance.choice(UUIDS)], days=list(range(7)),
            start=time(hour), end=time((hour + chance.randrange(1, 12)) % 24), zone="UTC",
            share_pct=chance.choice((50, 100)), kept=chance.random() < 0.7, state="approved",
            asked_by=user.username, asked_at=NOW,
        )  # fmt: skip


def _running(chance: Random, users: tuple[User, ...], data: Path) -> None:
    limits = {
        "estimate": {"estimate": timedelta(minutes=chance.randrange(1, 600))},
        "limit": {"time_limit": timedelta(minutes=chance.randrange(301, 900))},
    }
    for index in range(GPUS):
        if chance.random() < 0.5:
            continue
        known = chance.choice(("estimate", "limit", "progress", "nothing"))
        memory = chance.choice((None, 20 * GIB))
        job = jobs_made.running(
            chance.choice(users),
            (index,),
            priority=chance.randrange(1, 6),
            requirement=Requirement(exclusive=memory is None, memory_bytes=memory),
            **limits.get(known, {}),
        )
        if known == "progress":
            jobs_made.write_log(data, job, b"::gpucoord progress 0.25\n")


def _outside(chance: Random, users: tuple[User, ...]) -> list[ProcessReading]:
    """Processes that are no jobs."""
    found = []
    for index in range(GPUS):
        if chance.random() < 0.4:
            user, held = chance.choice(users).username, chance.choice((2, 30, 55)) * GIB
            pct = chance.choice((0.0, 90.0))
            found.append(
                process(4_200_000 + index, on=index, user=user, memory_bytes=held, sm_pct=pct)
            )
    return found


def _observe(outside: list[ProcessReading], data: Path, now: datetime) -> None:
    """A sweep of the sampler, and a step of the jobs' progress."""
    processes = list(outside)
    for job in Job.objects.filter(state=JobState.RUNNING.value):
        for uuid in job.attempts.get(ended_at=None).gpu_uuids:
            processes.append(
                process(
                    job.pk,
                    on=UUIDS.index(uuid),
                    user=job.owner.username,
                    job_ref=str(job.pk),
                    job_owner=job.owner.username,
                    memory_bytes=min(job.gpu_memory_bytes or 10 * GIB, 10 * GIB),
                )
            )
    gpus = []
    for index, uuid in enumerate(UUIDS):
        here = [each for each in processes if each.gpu_uuid == uuid]
        used = sum(each.memory_bytes or 0 for each in here)
        pct = min(100.0, sum(each.sm_pct or 0.0 for each in here))
        gpus.append(gpu(index, memory_used_bytes=used, utilization_pct=pct))
    snapshots.record(snapshot(gpus, processes, at=now))
    specs = SpecWriter(data=data, run_as="service", grace_s=1.0, wake_folder=data)
    ProgressStep(transaction.atomic, "gpubox", specs).step(now)


def _waiting(chance: Random, users: tuple[User, ...], now: datetime) -> None:
    jobs: list[Job] = []
    for _ in range(chance.randrange(1, 9)):
        what: dict[str, Any] = {"requirement": _requirement(chance)}
        if chance.random() < 0.3:
            what["estimate"] = timedelta(minutes=chance.randrange(1, 120))
        if chance.random() < 0.15:
            what["begin_at"] = now + timedelta(minutes=chance.randrange(1, 90))
        if jobs and chance.random() < 0.15:
            what["after"] = (Dependency(on=chance.choice(jobs).pk, after=DependencyKind.END),)
        at = now - timedelta(seconds=chance.randrange(10, 3000))
        priority = chance.randrange(1, 6)
        job = jobs_made.waiting(chance.choice(users), at, priority=priority, **what)
        if chance.random() < 0.1:
            Job.objects.filter(pk=job.pk).update(held="user", held_by=job.owner.username)
        jobs.append(job)


def _requirement(chance: Random) -> Requirement:
    gpus = chance.choice((1, 1, 1, 2, 4))
    memory = chance.choice((None, 4 * GIB, 40 * GIB, 79 * GIB))
    if gpus > 1 or memory is None:
        return Requirement(gpus=gpus, exclusive=True)
    pinned = chance.choice(UUIDS) if chance.random() < 0.2 else ""
    return Requirement(memory_bytes=memory, exclusive=chance.random() < 0.3, gpu_uuid=pinned)
