"""Models on the GPUs of a host: they boot into a place, leave for jobs and come back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.models import Claim, Event, Gpu, ProcessUse
from scheduler.dispatch.steps import preview
from scheduler.facts.jobs import Outcome, QueuedJob
from scheduler.language_models.model_services import rows
from scheduler.models import GpuHold, Job, ModelInstance, ModelService
from scheduler.submission.batches import rows as batch_rows
from tests.builders import GIB
from tests.monitor.past import process_use
from tests.scheduler.language_models.model_services.model_box import (
    Box,
    load,
    ready,
    scripts,
    service,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


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


def test_the_forecast_knows_when_a_model_leaves_for_jobs(alice: User) -> None:
    box = Box()
    loaded = load(box)
    loaded.service.boots.update(boot_s=1e6)
    ModelService.objects.update(min_residency_s=60)
    first, *_ = scripts(alice, 5, box.now)
    box.step()
    assert _expected(first, box) is None

    scripts(alice, 1, box.now)
    box.step()
    expected = _expected(first, box)
    assert expected is not None
    assert loaded.ready_at is not None
    assert expected - loaded.ready_at == pytest.approx(
        timedelta(seconds=70), abs=timedelta(seconds=5)
    )
    box.now += timedelta(seconds=58)
    box.read()
    # It may leave now, and nothing else is expected to happen.
    soon = _expected(first, box)
    assert soon is not None
    assert soon - box.now <= timedelta(seconds=15)
    assert [name for _ in range(2) for name in box.step()] == ["small"]
    assert expected - box.now <= timedelta(seconds=15)
    # It still says so while the model is leaving.
    left = _expected(first, box)
    assert left is not None
    assert timedelta() < left - box.now <= timedelta(seconds=15)


def test_items_that_are_no_jobs_yet_evict_no_model_in_a_forecast(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box()
    load(box).service.boots.update(boot_s=1e6)
    first, *_ = scripts(alice, 5, box.now)
    box.step()

    def coming_jobs(queue: Iterable[QueuedJob]) -> tuple[QueuedJob, ...]:
        return tuple(replace(next(iter(queue)), id=2**61 + n) for n in range(20))

    monkeypatch.setattr(batch_rows, "coming_jobs", coming_jobs)
    assert _expected(first, box) is None


def test_a_model_without_sense_stops_no_forecast_and_no_eviction(alice: User) -> None:
    box = Box(gpus=2)
    broken, _ = load(box, "broken", memory_mib=70 * 1024), load(box)
    ModelService.objects.filter(pk=broken.service_id).update(role="no such role")
    for row in ModelInstance.objects.all():
        row.service.boots.update(boot_s=1e6)
    first, *_ = scripts(alice, 6, box.now)
    box.step()

    assert _expected(first, box) is not None
    assert ["small"] in [box.step(after_s=29) for _ in range(4)]


def _expected(job: Job, box: Box) -> datetime | None:
    preview.forget()
    return preview.estimates_on("gpubox", box.now)[job.pk].p50


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


def test_evicted_models_are_loaded_again_one_after_another() -> None:
    box = Box(gpus=2)
    evicted = [service(name, evicted_at=box.now) for name in ("first", "second")]
    open_ones = []
    for _ in range(6):
        box.step()
        open_ones.append(ModelInstance.objects.filter(state="booting").count())

    assert max(open_ones) == 1
    assert [ready(row).state for row in evicted] == ["ready", "ready"]


def test_an_instance_that_can_not_end_delays_other_evictions_only_for_a_while(
    alice: User,
) -> None:
    box = Box(gpus=2)
    load(box, "stuck", memory_mib=70 * 1024)
    load(box, "other", memory_mib=70 * 1024)
    ModelInstance.objects.filter(service__name="stuck").update(state="cooling", since=box.now)
    scripts(alice, 6, box.now)

    assert box.step(after_s=100) == []
    assert [name for _ in range(3) for name in box.step(after_s=110)] == ["other"]


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
