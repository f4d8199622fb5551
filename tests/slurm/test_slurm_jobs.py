"""gpucoord's jobs in a real Slurm: submit, follow, end, exit code, cancel, reasons, GPUs."""

from __future__ import annotations

import shlex
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from monitor.models import Claim, Event, Gpu
from scheduler.dispatch.steps.engine_leaders import LeaderCheck
from scheduler.execution.engines.slurm import SlurmEngine
from scheduler.facts.jobs import Requirement
from scheduler.jobs.rows import changes
from scheduler.models import EngineStatus, EngineTask, Job
from scheduler.runner import files
from tests.processes.scheduling import (
    NO_ACCOUNT,
    Scheduler,
    attempt_of,
    log_of,
    reloaded,
    submit,
)
from tests.slurm.cluster import ACCOUNTS, FIRST, NODES, Cluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
]
LONG_S = 30.0


def task_of(job: Job) -> EngineTask:
    return EngineTask.objects.filter(job=job).latest("pk")


def codes_of(job: Job) -> list[str]:
    return [blocker["code"] for blocker in reloaded(job).blockers]


def run_to_blocker(scheduler: Scheduler, job: Job, code: str) -> dict[str, object]:
    scheduler.run_until(lambda: codes_of(job) == [code], within_s=LONG_S)
    return dict(reloaded(job).blockers[0])


def test_a_job_runs_in_slurm_as_its_owner_and_keeps_log_and_exit_code(
    scheduler: Scheduler, ann: User
) -> None:
    job = submit(ann, 'id -un; echo "$SLURM_JOB_ID"; exit 7')

    job = scheduler.run_to(job, within_s=LONG_S)

    attempt = attempt_of(job)
    assert (job.outcome, job.exit_code) == ("failed", 7)
    assert log_of(job).split() == [FIRST, attempt.engine_ref]
    assert attempt.engine == "slurm"
    assert attempt.node in NODES
    assert attempt.account == FIRST
    assert attempt.cpu_s is not None
    assert attempt.peak_memory_bytes is not None


def test_jobs_of_two_users_run_as_two_accounts(scheduler: Scheduler, ann: User, ben: User) -> None:
    jobs = [submit(ann, "id -u"), submit(ben, "id -u")]

    ended = [scheduler.run_to(job, within_s=LONG_S) for job in jobs]

    assert [log_of(job).strip() for job in ended] == [str(uid) for uid in ACCOUNTS.values()]


def test_a_user_without_an_account_is_refused_with_a_sentence(
    scheduler: Scheduler, transactional_db: None
) -> None:
    owner = User.objects.create_user(NO_ACCOUNT)

    blocker = run_to_blocker(scheduler, submit(owner, "true"), "EngineRefused")

    assert str(blocker["text"]).startswith(f"{NO_ACCOUNT} has no OS account on this server")


def test_a_cancelled_job_ends_in_slurm(scheduler: Scheduler, ann: User, slurm: Cluster) -> None:
    job = scheduler.run_to(submit(ann, "sleep 600"), "running", within_s=LONG_S)

    changes.cancel(Job.objects.filter(pk=job.pk), "ann", timezone.now())
    job = scheduler.run_to(job, within_s=LONG_S)

    assert job.outcome == "cancelled"
    ref = attempt_of(job).engine_ref
    slurm.wait_for(
        lambda: "RUNNING" not in slurm.run("squeue", "-h", "-j", ref, "-o", "%T"), 30, ""
    )


def test_a_waiting_job_that_is_cancelled_never_runs(
    scheduler: Scheduler, ann: User, slurm: Cluster
) -> None:
    blocking = [submit(ann, "sleep 600", Requirement(gpus=2)) for _ in NODES]
    for job in blocking:
        scheduler.run_to(job, "running", within_s=LONG_S)
    job = submit(ann, "echo it ran", Requirement(gpus=2))
    run_to_blocker(scheduler, job, "EngineWaits")
    texts = ("Slurm says: Resources.", "Slurm says: Priority.")
    scheduler.run_until(lambda: reloaded(job).blockers[0]["text"] in texts, within_s=LONG_S)

    changes.cancel(Job.objects.filter(pk=job.pk), "ann", timezone.now())
    scheduler.run_until(lambda: task_of(job).closed_at is not None, within_s=LONG_S)

    assert reloaded(job).outcome == "cancelled"
    assert log_of(job) == ""
    ref = task_of(job).ref
    assert "CANCELLED" in slurm.run("scontrol", "show", "job", ref)


def test_a_waiting_job_that_is_changed_is_submitted_anew_and_not_cancelled(
    scheduler: Scheduler, ann: User, slurm: Cluster
) -> None:
    blocking = [submit(ann, "sleep 600", Requirement(gpus=2)) for _ in NODES]
    for job in blocking:
        scheduler.run_to(job, "running", within_s=LONG_S)
    job = submit(ann, "echo ran", Requirement(gpus=2), time_limit=timedelta(minutes=10))
    run_to_blocker(scheduler, job, "EngineWaits")
    first = task_of(job)

    Job.objects.filter(pk=job.pk).update(time_limit_s=1200.0)
    scheduler.run_until(lambda: task_of(job).ref not in ("", first.ref), within_s=LONG_S)
    assert "TimeLimit=00:22:00" in slurm.run("scontrol", "show", "job", task_of(job).ref)
    for one in blocking:
        changes.cancel(Job.objects.filter(pk=one.pk), "ann", timezone.now())

    assert scheduler.run_to(job, within_s=LONG_S).outcome == "succeeded"
    assert job.attempts.count() == 1
    assert "CANCELLED" in slurm.run("scontrol", "show", "job", first.ref)


def test_a_job_that_is_cancelled_in_slurm_is_cancelled(
    scheduler: Scheduler, ann: User, slurm: Cluster
) -> None:
    job = scheduler.run_to(submit(ann, "sleep 600"), "running", within_s=LONG_S)

    slurm.run("scancel", attempt_of(job).engine_ref, uid=ACCOUNTS[FIRST])
    job = scheduler.run_to(job, within_s=LONG_S)

    assert (job.outcome, job.cancelled_by) == ("cancelled", "Slurm")


def test_the_gpus_are_those_that_slurm_allocated(scheduler: Scheduler, ann: User) -> None:
    job = submit(ann, 'echo "gpus=$CUDA_VISIBLE_DEVICES"; sleep 5', Requirement(gpus=2))

    job = scheduler.run_to(job, within_s=LONG_S)

    assert "gpus=0,1" in log_of(job)
    assert task_of(job).gpus == 2


def test_a_held_job_is_held_in_slurm_until_it_is_released(
    scheduler: Scheduler, ann: User, slurm: Cluster
) -> None:
    blocking = [submit(ann, "sleep 600", Requirement(gpus=2)) for _ in NODES]
    for job in blocking:
        scheduler.run_to(job, "running", within_s=LONG_S)
    job = submit(ann, "true", Requirement(gpus=1))
    run_to_blocker(scheduler, job, "EngineWaits")

    changes.hold_job(job.pk, "ann", timezone.now())
    scheduler.run_until(lambda: task_of(job).reason == "JobHeldUser", within_s=LONG_S)
    slurm.run("scancel", *(attempt_of(one).engine_ref for one in blocking))
    changes.release_job(job.pk, "ann", timezone.now())

    assert scheduler.run_to(job, within_s=LONG_S).outcome == "succeeded"


def test_what_slurm_refuses_is_told_in_its_words(
    scheduler: Scheduler, ann: User, slurm: Cluster
) -> None:
    job = submit(ann, "true", env={"SBATCH_PARTITION": "absent"})

    blocker = run_to_blocker(scheduler, job, "EngineRefused")

    assert "Invalid partition name" in str(blocker["text"])


def test_the_state_of_slurm_and_its_nodes_are_stored(scheduler: Scheduler, ann: User) -> None:
    scheduler.run_to(submit(ann, "true"), within_s=LONG_S)
    scheduler.run_until(
        lambda: EngineStatus.objects.filter(nodes__0__name=NODES[0]).exclude(version=""),
        within_s=LONG_S,
    )

    status = EngineStatus.objects.get()
    assert status.problem == ""
    assert status.version.startswith("slurm")
    assert {node["name"]: node["gpus"] for node in status.nodes} == dict.fromkeys(NODES, 2)


def test_without_slurmdbd_a_job_that_slurm_does_not_know_has_no_known_end(slurm: Cluster) -> None:
    assert "accounting storage is disabled" in slurm.run("sacct", "-n", "-j", "99999")
    assert SlurmEngine(conf=str(slurm.conf)).allocation("99999") is None


# Replaces the pid in started.json, as the account of a job can, before gpucoord reads it.
FORGE = """
import json, os, pathlib
path = pathlib.Path(os.environ["GPUCOORD_YIELD_FILE"]).with_name("started.json")
body = json.loads(path.read_text())
stat = pathlib.Path("/proc/{pid}/stat").read_text()
body["pid"], body["start_ticks"] = {pid}, int(stat.rpartition(")")[2].split()[19])
path.write_text(json.dumps(body))
"""


def test_a_job_gets_its_own_process_as_its_leader_and_none_of_another_user(
    scheduler: Scheduler, ann: User, ben: User, slurm: Cluster, settings: Any
) -> None:
    now = timezone.now()
    for index, node in product(range(2), NODES):
        uuid, times = f"{node}-{index}", {"state_since_at": now, "first_seen_at": now}
        Gpu.objects.create(uuid=uuid, host=node, index=index, last_seen_at=now, **times)
    honest = submit(ben, "sleep 600", Requirement(gpus=1))
    scheduler.run_to(honest, "running", within_s=LONG_S)
    scheduler.run_until(lambda: attempt_of(honest).gpu_uuids, within_s=LONG_S)
    forge = FORGE.format(pid=attempt_of(honest).pid)
    command = f"python3 -c {shlex.quote(forge)}; echo forged; sleep 600"
    forged = submit(ann, command, Requirement(gpus=1))
    submitted = EngineTask.objects.filter(job=forged).exclude(ref="")
    scheduler.run_until(submitted.exists, within_s=LONG_S)
    log = files.log_path(settings.DATA, forged.pk, 1)
    slurm.wait_for(lambda: log.exists() and "forged" in log.read_text(), LONG_S, "a forged report")
    scheduler.run_to(forged, "running", within_s=LONG_S)
    scheduler.run_until(lambda: attempt_of(forged).gpu_uuids, within_s=LONG_S)

    for node in NODES:
        LeaderCheck(transaction.atomic, node).step(timezone.now())

    pids = dict(Claim.objects.values_list("job_ref", "leader_pid"))
    assert attempt_of(forged).account == FIRST
    assert attempt_of(honest).pid is not None
    assert pids == {str(honest.pk): attempt_of(honest).pid, str(forged.pk): None}
    assert Event.objects.filter(kind="JOB_PROCESS_REFUSED", owner="ann").count() == 1
