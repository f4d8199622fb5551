"""Random runs: honest and lying sleeps, and others who take memory between: no start fails."""

from __future__ import annotations

import random

import pytest
from django.contrib.auth.models import User

from monitor.models import Claim
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.jobs.rows import changes as job_queue
from scheduler.language_models.model_services import rows
from scheduler.models import Job, ModelInstance, ModelService
from tests.builders import GIB, gpu_uuid
from tests.scheduler.language_models.model_services.model_box import Box, service

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
TOTAL = 80 * GIB
GPUS, TICKS = 2, 80


class World:
    """GPUs whose memory is really taken: by models, jobs and processes of others."""

    def __init__(self, seed: int, owner: User) -> None:
        self.random, self.owner = random.Random(seed), owner
        self.box = Box(GPUS)
        self.lies = {name: self.random.random() < 0.5 for name in ("first", "second")}
        for name in self.lies:
            service(
                name,
                memory_mib=self.random.choice((30, 45, 60)) * 1024,
                sleep_path=self.random.choice(("/sleep", "/sleep?level={level}")),
                wake_path="/wake_up",
                keep_alive_s=self.random.choice((1, 10)),
                min_residency_s=0,
            )
        self.failed_starts: list[str] = []
        self.started: set[int] = set()
        self.answered = 0
        self.box.servers.on_call = self.called

    def called(self, path: str) -> None:
        """A server is asked to sleep or to wake; which one is the one in that state."""
        state = "booting" if path == "/wake_up" else "draining"
        for one in ModelInstance.objects.filter(state=state, sleep_level__gt=0):
            if path == "/wake_up":
                self.take(one.job_id or 0, self.memory_of(one), f"wake of {one.service.name}")
            else:
                left = 0.66 if self.lies[one.service.name] else 0.02
                self.box.held[one.job_id or 0] = round(self.memory_of(one) * left)

    def memory_of(self, one: ModelInstance) -> int:
        return one.memory_bytes or 0

    def take(self, job: int, size: int, name: str) -> None:
        """The processes of a job take their memory; a GPU that is too full fails the start."""
        self.box.held[job] = size
        for claim in Claim.objects.filter(job_ref=job, until_at=None):
            index = next(n for n in range(GPUS) if gpu_uuid(n) == claim.gpu_uuid)
            if self.box.used(index) > TOTAL:
                self.failed_starts.append(name)

    def others(self) -> None:
        """A process of another user takes memory that is free now, or ends."""
        index = self.random.randrange(GPUS)
        if self.random.random() < 0.15:
            self.box.strangers[index] = 0
            free = TOTAL - self.box.used(index)
            if free > GIB and self.random.random() < 0.6:
                self.box.strangers[index] = min(free, self.random.choice((5, 20, 40)) * GIB)

    def tick(self) -> None:
        self.others()
        if self.random.random() < 0.2:
            name = self.random.choice(sorted(self.lies))
            rows.request_instance(ModelService.objects.get(name=name).pk, self.box.now)
        if self.random.random() < 0.1:
            size = self.random.choice((10, 30, 70)) * GIB
            new = NewJob(command="true", requirement=Requirement(memory_bytes=size))
            job_queue.submit(new, self.owner, self.box.now)
        self.box.step()
        for job in Job.objects.filter(state="starting").exclude(pk__in=self.started):
            self.started.add(job.pk)
            self.take(job.pk, job.gpu_memory_bytes or 0, f"start of job {job.pk}")
        self.answered += ModelInstance.objects.filter(state="ready").count()
        for job in Job.objects.filter(state__in=("starting", "stopping"), attempts__ended_at=None):
            is_over = job.model_service_id is None and self.random.random() < 0.2
            if is_over or job.state == "stopping":
                self.box.held.pop(job.pk, None)
                self.box.end(job)
        Claim.objects.exclude(until_at=None).filter(freed_at=None).update(freed_at=self.box.now)


def run(seed: int, owner: User) -> World:
    world = World(seed, owner)
    for _ in range(TICKS):
        world.tick()
    return world


@pytest.mark.parametrize("seed", range(20))
def test_no_start_and_no_wake_lacks_memory(seed: int, alice: User) -> None:
    world = run(seed, alice)

    assert world.failed_starts == []
    # Models did serve, and jobs did run.
    assert world.answered > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_no_start_and_no_wake_lacks_memory_in_many_runs(seed: int, alice: User) -> None:
    assert run(seed, alice).failed_starts == []
