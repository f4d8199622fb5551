"""Models on the GPUs of a host: they boot into a place, leave for jobs and come back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.models import Claim, Event, Gpu, ProcessUse
from monitor.snapshot import rows as monitor_store
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.dispatch.steps.model_evictions import ModelEvictions
from scheduler.facts.jobs import AttemptEnding, NewJob, Outcome, Requirement
from scheduler.facts.plans import PlanPolicy
from scheduler.lifecycle.rows import queue as job_queue
from scheduler.lifecycle.rows import transitions
from scheduler.model_services import rows
from scheduler.model_services.probes import HealthProbe
from scheduler.model_services.step import ModelStep
from scheduler.models import Attempt, GpuHold, Job, ModelInstance, ModelService
from tests.builders import GIB, NOW, snapshot
from tests.monitor.past import process_use

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
POLICY = PlanPolicy(cpu_jobs=1)


class Healthy(HealthProbe):
    """Every server answers at once."""

    def results(self, urls: Mapping[int, str]) -> dict[int, bool]:
        return dict.fromkeys(urls, True)


class Box:
    """A host with GPUs, whose passes the test makes one by one."""

    def __init__(self, gpus: int = 1) -> None:
        self.gpus = gpus
        self.now = NOW
        self._models = ModelStep(transaction.atomic, "gpubox", Healthy())
        self._evictions = ModelEvictions(transaction.atomic, "gpubox", POLICY)
        self._dispatcher = Dispatcher(transaction.atomic, "gpubox", POLICY)

    def step(self, after_s: float = 1) -> list[str]:
        """One pass; returns the models that were evicted."""
        self.now += timedelta(seconds=after_s)
        monitor_store.record(snapshot(self.gpus, at=self.now))
        self._models.step(self.now)
        evicted = self._evictions.step(self.now)
        self._dispatcher.step(self.now)
        # As the part that starts the processes does.
        placed = ModelInstance.objects.filter(job__attempts__ended_at=None, port=None)
        placed.update(port=9000)
        return evicted

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
    for _ in range(3):
        box.step()
    return ready(row)


def ready(row: ModelService) -> ModelInstance:
    return ModelInstance.objects.select_related("service", "job").get(service=row, state="ready")


def scripts(owner: User, count: int, now: datetime = NOW) -> list[Job]:
    new = NewJob(command="true", requirement=Requirement(gpus=1, exclusive=True))
    return [job_queue.submit(new, owner, now) for _ in range(count)]


def test_an_instance_is_placed_with_its_memory_and_claims_its_gpu() -> None:
    loaded = load(Box())

    claim = Claim.objects.get()
    assert (claim.kind, claim.memory_bytes, claim.phase) == ("llm", 20 * GIB, "ready")
    assert loaded.memory_bytes == 20 * GIB
    assert loaded.expected_ready_at is not None
    assert Job.objects.get().owner.username == "gpucoord-models"


def test_a_quota_for_all_users_does_not_limit_models() -> None:
    from scheduler.models import Quota

    Quota.objects.create(gpus=0, jobs=0)

    assert load(Box()).state == "ready"


def test_two_models_never_get_more_memory_than_a_gpu_has() -> None:
    box = Box(gpus=1)
    load(box, "first", memory_mib=50 * 1024)
    second = service("second", memory_mib=50 * 1024)
    rows.request_instance(second.pk, box.now)
    for _ in range(3):
        box.step()

    waiting = ModelInstance.objects.get(service=second)
    assert (waiting.state, waiting.started_boot_at) == ("booting", None)


def test_six_waiting_jobs_evict_an_idle_model_and_the_first_gets_its_gpu(alice: User) -> None:
    box = Box()
    loaded = load(box)
    # Long enough that only the number of the jobs decides.
    ModelService.objects.update(min_residency_s=60)
    loaded.service.boots.update(boot_s=1e6)
    five = scripts(alice, 5, box.now)
    assert [box.step(after_s=40) for _ in range(3)] == [[], [], []]

    scripts(alice, 1, box.now)
    evicted = [name for _ in range(2) for name in box.step()]
    box.step()

    loaded.refresh_from_db()
    assert evicted == ["small"]
    assert loaded.state == "cooling"
    assert f"Job {five[0].pk} needs its GPU" in loaded.reason
    assert GpuHold.objects.get().job_id == five[0].pk
    assert Event.objects.filter(kind="MODEL_EVICTED", text__contains="more than 5").count() == 1
    assert loaded.job is not None
    box.end(loaded.job, Outcome.CANCELLED)
    box.step()
    assert Job.objects.get(pk=five[0].pk).state == "starting"


def test_an_evicted_model_is_loaded_again_when_no_job_waits(alice: User) -> None:
    box = Box()
    loaded = load(box, min_instances=1)
    loaded.service.boots.update(boot_s=1e6)
    jobs = scripts(alice, 6, box.now)
    for _ in range(4):
        box.step(after_s=40)
    assert loaded.job is not None
    box.end(loaded.job, Outcome.CANCELLED)
    for job in jobs:
        box.step()
        assert ModelInstance.objects.exclude(pk=loaded.pk).count() == 0
        box.end(job)
    for _ in range(4):
        box.step()

    assert ready(loaded.service).pk != loaded.pk
    loaded.service.refresh_from_db()
    assert loaded.service.evicted_at is None


@pytest.mark.parametrize("kept", [{"pin": True}, {"role": "brain_primary"}])
def test_pinned_and_brain_models_stay_whatever_waits(alice: User, kept: dict[str, Any]) -> None:
    box = Box()
    loaded = load(box, **kept)
    scripts(alice, 30, box.now)

    assert [box.step(after_s=60) for _ in range(3)] == [[], [], []]
    loaded.refresh_from_db()
    assert loaded.state == "ready"


def test_a_model_that_answers_a_request_stays(alice: User) -> None:
    box = Box()
    loaded = load(box)
    ModelInstance.objects.update(in_flight=1)
    scripts(alice, 30, box.now)

    assert [box.step(after_s=60) for _ in range(2)] == [[], []]
    assert Claim.objects.get(job_ref=str(loaded.job_id)).phase == "busy"


def test_requests_are_counted_by_the_hour() -> None:
    box = Box()
    loaded = load(box)
    ModelInstance.objects.update(tasks_completed=48)
    box.step(after_s=20)
    box.step(after_s=20)

    assert loaded.service.hours.get().requests == 48
    assert rows.requests_per_hour(loaded.service, box.now) == 2.0


def test_the_measured_peak_is_reserved_for_the_next_instance() -> None:
    box = Box()
    loaded = load(box, memory_mib=None)
    use = process_use(Gpu.objects.get(), box.now + timedelta(seconds=20))
    ProcessUse.objects.filter(pk=use.pk).update(
        host="gpubox", job_ref=str(loaded.job_id), peak_memory_bytes=30 * GIB, ended_at=None,
        last_seen_at=box.now + timedelta(seconds=20),
    )  # fmt: skip
    exclusive = Job.objects.get().exclusive

    box.step(after_s=20)

    assert exclusive
    assert loaded.service.boots.get().peak_memory_bytes == 30 * GIB
    assert rows.needed_memory(ModelService.objects.get()) == 33 * GIB
