"""A host with GPUs and models, whose passes a test makes one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import httpx
from django.contrib.auth.models import User
from django.db import transaction

from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Claim
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.dispatch.steps.model_evictions import ModelEvictions, ModelWakes
from scheduler.facts.jobs import AttemptEnding, NewJob, Outcome, Requirement
from scheduler.facts.plans import PlanPolicy
from scheduler.jobs.rows import changes as job_queue
from scheduler.jobs.rows import transitions
from scheduler.language_models.model_services import rows
from scheduler.language_models.model_services.probes import HealthProbe
from scheduler.language_models.model_services.step import ModelStep
from scheduler.models import Attempt, Job, ModelInstance, ModelService
from tests.builders import NOW, gpu, gpu_uuid, process, snapshot

POLICY = PlanPolicy(cpu_jobs=1)
# Usually three: the job is queued and placed, its place is read, and its server answers.
MOST_PASSES = 10


class Healthy(HealthProbe):
    """Every server answers at once, and does what it is asked for. `asked`: the paths of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.on_call: Callable[[str], None] = lambda _path: None

    def results(self, urls: Mapping[int, str]) -> dict[int, bool]:
        return dict.fromkeys(urls, True)

    def calls(self, urls: Mapping[int, str]) -> dict[int, bool]:
        for url in urls.values():
            self.asked.append(httpx.URL(url).raw_path.decode())
            self.on_call(self.asked[-1])
        return dict.fromkeys(urls, True)


class Box:
    """A host with GPUs, whose passes the test makes one by one."""

    def __init__(self, gpus: int = 1) -> None:
        self.gpus = gpus
        self.now = NOW
        # By job: what its processes hold on each of its GPUs, as the driver lists it.
        self.held: dict[int, int | None] = {}
        # By GPU: memory in use of which the driver lists no process; None: it does not say how
        # much of the GPU is in use.
        self.unlisted: dict[int, int | None] = {}
        # By GPU: what processes of other users hold.
        self.strangers: dict[int, int] = {}
        self.servers = Healthy()
        self.renew()

    def renew(self) -> None:
        """New steps, as each slice of the loop has."""
        self._models = ModelStep(transaction.atomic, "gpubox", self.servers)
        self._wakes = ModelWakes(transaction.atomic, "gpubox", POLICY)
        self._evictions = ModelEvictions(transaction.atomic, "gpubox", POLICY)
        self._dispatcher = Dispatcher(transaction.atomic, "gpubox", POLICY)

    def step(self, after_s: float = 1) -> list[str]:
        """One pass; returns the models that were evicted."""
        self.now += timedelta(seconds=after_s)
        self.read()
        self._wakes.step(self.now)
        self._models.step(self.now)
        evicted = self._evictions.step(self.now)
        self._dispatcher.step(self.now)
        # As the part that starts the processes does.
        placed = ModelInstance.objects.filter(job__attempts__ended_at=None, port=None)
        placed.update(port=9000)
        return evicted

    def read(self) -> None:
        """The sampler's newest reading, with the processes of models and of strangers."""
        on = list(Claim.objects.filter(freed_at=None).values_list("job_ref", "gpu_uuid"))
        models = [
            process(4_200_000 + job, index, job_ref=str(job), memory_bytes=held, user="models")
            for job, held in self.held.items()
            for index in range(self.gpus)
            if (str(job), gpu_uuid(index)) in on
        ]
        others = [
            process(5_000_000 + index, index, memory_bytes=held)
            for index, held in self.strangers.items()
            if held
        ]
        is_told = {index: self.unlisted.get(index, 0) is not None for index in range(self.gpus)}
        gpus = tuple(
            gpu(index, memory_used_bytes=self.used(index) if is_told[index] else None)
            for index in range(self.gpus)
        )
        monitor_store.record(snapshot(gpus, at=self.now, processes=(*models, *others)))

    def used(self, index: int) -> int:
        """The memory that is in use on a GPU."""
        on = Claim.objects.filter(freed_at=None, gpu_uuid=gpu_uuid(index))
        jobs = {int(ref) for ref in on.values_list("job_ref", flat=True)}
        held = sum(held or 0 for job, held in self.held.items() if job in jobs)
        return held + self.strangers.get(index, 0) + (self.unlisted.get(index) or 0)

    def end(self, job: Job, outcome: Outcome = Outcome.SUCCEEDED) -> None:
        """The job's process ends."""
        attempt = Attempt.objects.get(job=job, ended_at=None)
        ending = AttemptEnding(outcome=outcome, ended_at=self.now)
        assert transitions.record_end(attempt, ending, self.now)


def service(name: str = "small", **values: Any) -> ModelService:
    fixed = {"argv": ["serve", "{port}"], "memory_mib": 20 * 1024, "keep_alive_s": None}
    return ModelService.objects.create(name=name, **(fixed | values))


def load(box: Box, name: str = "small", **values: Any) -> ModelInstance:
    """A service with a ready instance."""
    row = service(name, **values)
    rows.request_instance(row.pk, box.now)
    for _ in range(MOST_PASSES):
        box.step()
        if row.instances.filter(state="ready").exists():
            return ready(row)
    raise AssertionError(f"not ready after {MOST_PASSES} passes: {_states(row)}")


def _states(row: ModelService) -> list[object]:
    """The instances of a service with their jobs, and why these wait."""
    columns = ("state", "reason", "port", "job__state", "job__blockers")
    return list(row.instances.values_list(*columns))


def ready(row: ModelService) -> ModelInstance:
    return ModelInstance.objects.select_related("service", "job").get(service=row, state="ready")


def scripts(owner: User, count: int, now: datetime = NOW) -> list[Job]:
    new = NewJob(command="true", requirement=Requirement(gpus=1, exclusive=True))
    return [job_queue.submit(new, owner, now) for _ in range(count)]
