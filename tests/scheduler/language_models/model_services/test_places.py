"""Which GPUs models get: pairs, named and reserved ones; and what a GPU then shows."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace

from monitor.facts.gpus import GpuState
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Claim
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.jobs.rows import changes as job_queue
from scheduler.language_models.model_proxy import rows as proxy_rows
from scheduler.language_models.model_proxy.rows import Counts
from scheduler.models import Job
from tests.builders import claim, gpu, gpu_uuid, snapshot
from tests.scheduler.language_models.model_services.model_box import Box, load, scripts, service

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def blockers(job: Job) -> set[str]:
    job.refresh_from_db()
    return {one["code"] for one in job.blockers}


def test_an_instance_of_two_gpus_gets_two_of_those_that_its_service_names() -> None:
    box = Box(gpus=4)

    pair = load(box, gpus=2, on_gpus=[gpu_uuid(1), gpu_uuid(2), gpu_uuid(3)])

    assert len(pair.gpu_uuids) == 2
    assert gpu_uuid(0) not in pair.gpu_uuids
    (first, second) = pair.gpu_uuids
    tasks = snapshots.gpu_tasks()
    assert tasks[first][0].paired == (second,)
    assert tasks[second][0].paired == (first,)


def test_gpus_of_a_brain_are_reserved_for_it(alice: User) -> None:
    box = Box(gpus=2)
    load(box, "brain", role="brain_primary", on_gpus=[gpu_uuid(0)], memory_mib=1024)
    jobs = [
        job_queue.submit(NewJob(command="true", requirement=one), alice, box.now)
        for one in (Requirement(memory_bytes=1), Requirement(memory_bytes=1, gpu_uuid=gpu_uuid(0)))
    ]

    box.step()

    assert list(Claim.objects.filter(job_ref=jobs[0].pk).values_list("gpu_uuid", flat=True)) == [
        gpu_uuid(1)
    ]
    assert "GpuReserved" in blockers(jobs[1])


def test_a_gpu_is_reserved_before_the_brain_is_loaded_and_not_for_workers(alice: User) -> None:
    box = Box(gpus=1)
    brain = service("brain", role="brain_secondary", on_gpus=[gpu_uuid(0)])
    (job,) = scripts(alice, 1)

    box.step()
    assert blockers(job) == {"GpuReserved"}

    brain.role = "worker_or_script"
    brain.save()
    box.step(after_s=5)
    assert Claim.objects.filter(job_ref=job.pk).exists()


def test_a_gpu_shows_its_model(root: User, as_user: object) -> None:
    box = Box(gpus=2)
    box.now = timezone.now()
    loaded = load(box, "qwen2.5:14b", gpus=2)
    proxy_rows.write({loaded.pk: Counts(completed=23)}, [], [], box.now)

    client: Client = as_user(root)  # type: ignore[operator]
    gpus = client.get("/api/gpus/").json()["gpus"]

    first = gpus[0]
    assert (first["model"], first["task_id"]) == ("qwen2.5:14b", str(loaded.job_id))
    assert (first["tasks_completed"], first["paired_with"]) == (23, [1])
    assert first["tasks"][0]["tasks_completed"] == 23
    assert first["started_boot"] is not None
    assert first["expected_ready"] > first["started_boot"]
    assert (first["script"], first["progress"], first["eta"]) == (None, None, None)
    html = client.get("/").content.decode()
    assert 'href="/models/qwen2.5:14b/"' in html
    page = client.get(f"/gpus/{gpu_uuid(0)}/").content.decode()
    assert "paired with GPU 1" in page
    assert ">23 requests</span>" in page


def test_the_state_of_a_gpu_changes_with_its_booking_before_the_next_sweep(
    root: User, as_user: object
) -> None:
    box = Box(gpus=1)
    box.now = timezone.now()
    (job,) = scripts(root, 1, box.now)
    read = snapshot([gpu(state=GpuState.LLM_READY)])
    snapshots.record(replace(read, at=box.now, seq=99))
    snapshots.open_claim(claim(str(job.pk)), read.host.name, timezone.now())

    client: Client = as_user(root)  # type: ignore[operator]
    (shown,) = client.get("/api/gpus/").json()["gpus"]

    assert (shown["state"], shown["model"], shown["jobs"]) == (
        "booting_script", None, [str(job.pk)],
    )  # fmt: skip
    html = client.get("/").content.decode()
    assert "starting a job" in html
    assert "model ready" not in html


def test_a_gpu_shows_its_script(root: User, as_user: object) -> None:
    box = Box(gpus=1)
    box.now = timezone.now()
    (job,) = scripts(root, 1, box.now)
    Job.objects.filter(pk=job.pk).update(script="whisper_transcribe")
    box.step()

    client: Client = as_user(root)  # type: ignore[operator]
    (gpu,) = client.get("/api/gpus/").json()["gpus"]

    assert (gpu["script"], gpu["task_id"], gpu["model"]) == (
        "whisper_transcribe",
        str(job.pk),
        None,
    )
