"""A job of Slurm on a monitored node: its processes are found by cgroup, and incidents name it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.facts.incidents import CLAIMED_EMPTY, UNUSED_GPUS
from monitor.facts.readings import GpuProcess, ProcessIdentity, ProcessReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents.step import IncidentStep
from monitor.models import Incident
from monitor.owners.policy import attribute, job_cgroup_of
from scheduler.dispatch.steps.engine_leaders import LeaderCheck
from scheduler.execution.engines.policy import ReportedProcess
from scheduler.facts.jobs import Identity
from scheduler.jobs.rows import transitions
from scheduler.models import Attempt, Job
from tests import jobs_made
from tests.builders import GIB, NOW, gpu_uuid, snapshot

pytestmark = pytest.mark.django_db
NODE, LOGIN = "gpubox", "login1"
BATCH, TICKS = 500, 7000
OF_JOB = "0::/system.slice/slurmstepd.scope/job_71/step_batch/user/task_0"
OF_STEP = "0::/system.slice/slurmstepd.scope/job_71/step_0/user/task_1"
OF_OTHER = "0::/system.slice/slurmstepd.scope/job_72/step_0/user/task_1"


def at(minute: float) -> datetime:
    return NOW + timedelta(minutes=minute)


@pytest.fixture
def job(alice: User) -> Job:
    """It runs in Slurm on two GPUs of the node, submitted by another host."""
    made = jobs_made.waiting(alice)
    attempt = Attempt(
        job=made, number=1, host=LOGIN, node=NODE, nonce="ab" * 16, engine="slurm",
        engine_ref="71", gpu_uuids=[gpu_uuid(0), gpu_uuid(1)],
    )  # fmt: skip
    assert transitions.adopt(attempt, NOW)
    identity = Identity(
        account="root", runner_pid=BATCH - 1, runner_start_ticks=TICKS, pid=BATCH,
        start_ticks=TICKS, started_at=NOW,
    )  # fmt: skip
    assert transitions.record_start(attempt, identity)
    batch = ReportedProcess(uid=0, cgroup=OF_JOB, has_job_cgroup=True)
    assert LeaderCheck(transaction.atomic, NODE, lambda *_: batch).step(NOW) == 1
    return made


def identity(pid: int, cgroup: str) -> ProcessIdentity:
    """A process that descends from slurmstepd, not from the batch script."""
    return ProcessIdentity(
        pid=pid, start_ticks=TICKS + pid - BATCH, created_at=NOW, uid=1001, user="alice",
        program="python", session=pid, lineage=(90, 1), job_cgroup=job_cgroup_of(cgroup),
    )  # fmt: skip


def seen(*of_steps: tuple[int, int, str]) -> tuple[ProcessReading, ...]:
    """Readings of (pid, index of the GPU, cgroup) on the node, as its sampler makes them."""
    identities = {pid: identity(pid, cgroup) for pid, _, cgroup in of_steps}
    identities[BATCH] = identity(BATCH, OF_JOB)
    processes = [
        GpuProcess(gpu_uuid=gpu_uuid(index), pid=pid, memory_bytes=GIB, sm_pct=80.0)
        for pid, index, _ in of_steps
    ]
    return attribute(processes, identities, snapshots.open_claims(NODE))


def watch(minutes: int, *there: ProcessReading) -> None:
    """The incidents of the node, judged each half minute."""
    step = IncidentStep(NODE, gap_s=60)
    snapshots.record(snapshot(2, at=NOW))
    for number in range(1, 2 * minutes + 1):
        step.judge(snapshot(2, there, at=at(number / 2), seq=number), (), at(number / 2))


def test_a_process_of_another_step_joins_the_job_by_its_cgroup(job: Job) -> None:
    in_step, other = seen((600, 0, OF_STEP), (601, 1, OF_OTHER))

    assert (in_step.job_ref, in_step.job_owner) == (str(job.pk), "alice")
    assert other.job_ref is None


def test_gpus_that_slurm_allocated_and_nothing_uses_are_an_incident_of_the_job(job: Job) -> None:
    watch(20)

    incident = Incident.objects.get(rule=CLAIMED_EMPTY)
    assert (incident.host, incident.job_ref, incident.job_owner) == (NODE, str(job.pk), "alice")


def test_a_job_that_uses_one_of_its_two_gpus_is_reported_with_the_other(job: Job) -> None:
    watch(60, *seen((600, 0, OF_STEP)))

    assert not Incident.objects.filter(rule=CLAIMED_EMPTY).exists()
    incident = Incident.objects.get(rule=UNUSED_GPUS)
    assert (incident.job_ref, incident.job_owner) == (str(job.pk), "alice")


def test_a_job_whose_processes_slurm_started_is_no_use_outside_of_the_queue(job: Job) -> None:
    watch(30, *seen((600, 0, OF_STEP), (601, 1, OF_STEP)))

    assert not Incident.objects.exists()
