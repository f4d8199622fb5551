"""The process that a job in Slurm reports as its own: only the kernel's word about it counts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.facts.readings import GpuProcess, ProcessIdentity
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Claim, Event, ItemFault
from monitor.owners.policy import attribute
from monitor.runtime.probes.process_identity import start_ticks
from scheduler.dispatch.steps.engine_leaders import LeaderCheck
from scheduler.execution.engines import slurm
from scheduler.execution.engines.policy import ReportedProcess, refusal_of
from scheduler.facts.jobs import Identity
from scheduler.jobs.rows import transitions
from scheduler.models import Attempt, Job
from tests import jobs_made
from tests.builders import GIB, NOW, gpu_uuid

NODE, UID, OTHER, REF = "gpubox", 1001, 1002, "71"
REFUSED = "JOB_PROCESS_REFUSED"
IN_JOB = "0::/system.slice/slurmstepd.scope/job_71/step_batch/user/task_0"
IN_V1 = (
    "4:freezer:/slurm_gpubox/uid_1001/job_71/step_batch\n1:name=systemd:/user.slice/user-0.slice"
)
IN_OTHER_JOB = "0::/system.slice/gpubox_slurmstepd.scope/job_72/step_0/user/task_0"
MADE_BY_USER = "0::/user.slice/user-1001.slice/user@1001.service/slurm/job_71"
IN_SESSION = "0::/user.slice/user-1001.slice/session-3.scope"
OF_SLURMD = "0::/system.slice/slurmd.service"


def refusal(cgroup: str, uid: int | None = UID, *, has_job_cgroup: bool = False) -> str:
    process = ReportedProcess(uid=uid, cgroup=cgroup, has_job_cgroup=has_job_cgroup)
    return refusal_of(process, UID, REF)


@pytest.mark.parametrize("cgroup", [IN_JOB, IN_V1])
def test_a_process_of_the_account_in_the_cgroup_of_the_job_is_accepted(cgroup: str) -> None:
    assert refusal(cgroup, has_job_cgroup=True) == ""


@pytest.mark.parametrize("cgroup", ["", "0::/", OF_SLURMD])
def test_without_cgroups_of_slurm_the_account_decides(cgroup: str) -> None:
    assert refusal(cgroup) == ""
    assert refusal(cgroup, OTHER) == "it runs as uid 1002, and the job as uid 1001"
    assert refusal(cgroup, None) == "its account cannot be read"


def test_a_process_of_another_account_is_refused_even_in_the_cgroup_of_the_job() -> None:
    assert refusal(IN_JOB, OTHER, has_job_cgroup=True) == (
        "it runs as uid 1002, and the job as uid 1001"
    )


def test_a_process_of_another_job_of_slurm_is_refused() -> None:
    assert "job_72, which is not that of Slurm's job 71" in refusal(IN_OTHER_JOB)


@pytest.mark.parametrize("cgroup", [MADE_BY_USER, OF_SLURMD, "0::/"])
def test_a_process_outside_of_the_cgroup_of_its_job_is_refused(cgroup: str) -> None:
    assert refusal(cgroup, has_job_cgroup=True) == "it is outside the cgroup of Slurm's job 71"


@pytest.mark.parametrize("cgroup", [MADE_BY_USER, IN_SESSION])
def test_a_process_of_a_login_is_refused(cgroup: str) -> None:
    assert refusal(cgroup) == "it belongs to a login session"


@pytest.mark.parametrize(
    ("place", "is_there"),
    [
        ("system.slice/slurmstepd.scope/job_71", True),
        ("system.slice/gpubox_slurmstepd.scope/job_71", True),
        ("freezer/slurm/uid_1001/job_71", True),
        ("system.slice/slurmstepd.scope/job_710", False),
        ("user.slice/user-1001.slice/slurm/uid_1001/job_71", False),
    ],
)
def test_the_cgroup_of_a_job_is_found_where_slurm_makes_it(
    tmp_path: Path, place: str, is_there: bool
) -> None:
    (tmp_path / place).mkdir(parents=True)

    assert slurm.has_job_cgroup(REF, tmp_path) is is_there
    assert not slurm.has_job_cgroup("*", tmp_path)


# Two real processes, of this account and of another one.


@pytest.fixture
def own() -> Iterator[int]:
    yield from running(None)


@pytest.fixture
def others() -> Iterator[int]:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another account")
    yield from running(65_534)


def running(uid: int | None) -> Iterator[int]:
    command = ["/bin/sh", "-c", "echo; exec sleep 600"]
    with subprocess.Popen(command, user=uid, stdout=subprocess.PIPE, cwd="/") as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def reporting(owner: User, pid: int, node: str = NODE) -> Job:
    """A job in Slurm, of the account of this process, which reports `pid`."""
    job = jobs_made.waiting(owner)
    attempt = Attempt(
        job=job, number=1, host="login1", node=node, nonce=f"{job.pk:032x}", engine="slurm",
        engine_ref=REF, gpu_uuids=[gpu_uuid()],
    )  # fmt: skip
    assert transitions.adopt(attempt, NOW)
    identity = Identity(
        account=str(os.getuid()), runner_pid=1, runner_start_ticks=1, pid=pid,
        start_ticks=start_ticks(pid) or 0, started_at=NOW,
    )  # fmt: skip
    assert transitions.record_start(attempt, identity)
    return job


def job_of(pid: int) -> str | None:
    """The job that a process on the GPU is attributed to."""
    ticks = start_ticks(pid) or 0
    identity = ProcessIdentity(pid=pid, start_ticks=ticks, created_at=NOW, uid=UID, user="bob")
    process = GpuProcess(gpu_uuid=gpu_uuid(), pid=pid, memory_bytes=GIB)
    (reading,) = attribute([process], {pid: identity}, snapshots.open_claims(NODE))
    return reading.job_ref


def check() -> LeaderCheck:
    return LeaderCheck(transaction.atomic, NODE)


@pytest.mark.django_db
def test_a_process_is_attributed_only_after_its_node_has_checked_it(alice: User, own: int) -> None:
    job = reporting(alice, own)
    assert job_of(own) is None

    assert check().step(NOW) == 1

    assert job_of(own) == str(job.pk)
    assert not Event.objects.filter(kind=REFUSED).exists()


@pytest.mark.django_db
def test_a_process_of_another_user_is_not_attributed_and_that_is_told_once(
    alice: User, others: int
) -> None:
    job = reporting(alice, others)
    # As an earlier version stored it.
    snapshots.set_leader(str(job.pk), others, start_ticks(others))

    for second in range(3):
        # Each is a new process of the service.
        check().step(NOW + timedelta(seconds=second))

    assert job_of(others) is None
    event = Event.objects.get(kind=REFUSED)
    assert (event.job_ref, event.owner, event.host) == (str(job.pk), "alice", NODE)
    assert f"process {others} on {NODE} as its own, but it runs as uid 65534" in event.text


@pytest.mark.django_db
def test_only_the_node_of_the_job_checks_it_and_only_once(alice: User, own: int) -> None:
    reporting(alice, own, node="another")
    step = check()
    assert step.step(NOW) == 0
    reporting(alice, own)

    assert [step.step(NOW), step.step(NOW)] == [1, 0]


@pytest.mark.django_db
def test_a_process_that_has_ended_is_no_leader(alice: User, own: int) -> None:
    reporting(alice, own)
    Attempt.objects.update(start_ticks=1)

    check().step(NOW)

    assert set(Claim.objects.values_list("leader_pid", flat=True)) == {None}
    assert not Event.objects.filter(kind=REFUSED).exists()


@pytest.mark.django_db
def test_an_account_that_the_node_does_not_have_is_a_fault_of_this_job_alone(
    alice: User, own: int
) -> None:
    unknown = reporting(alice, own)
    Attempt.objects.update(account="not-there")
    job = reporting(alice, own)

    check().step(NOW)

    assert job_of(own) == str(job.pk)
    assert ItemFault.objects.get(part="engine leaders").item == f"process of job {unknown.pk}"
