"""Jobs that leave their GPUs in a real Slurm: on request, at a time limit, and for another job."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from scheduler.dispatch.steps import yields as yield_requests
from scheduler.facts.jobs import Requirement, YieldOptions
from scheduler.facts.plans import Yield
from scheduler.models import Job
from tests.processes.scheduling import Scheduler, attempt_of, log_of, reloaded, submit
from tests.slurm.cluster import ACCOUNTS, SECOND, Cluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]
LONG_S, REQUEUED_S = 30.0, 90.0
# Saves its work when it is asked to leave, and continues from there.
SAVES = (
    "if [ -e $GPUCOORD_CHECKPOINT_DIR/step ]; then echo resumed; exit 0; fi; echo ready; "
    "while [ ! -e $GPUCOORD_YIELD_FILE ]; do sleep 0.05; done; "
    "touch $GPUCOORD_CHECKPOINT_DIR/step; exit 85"
)


def saving_job(scheduler: Scheduler, owner: User) -> Job:
    """A running job that uses both GPUs of a node."""
    options = YieldOptions(preemptible=True)
    job = submit(owner, SAVES, Requirement(gpus=2), yield_options=options)
    job = scheduler.run_to(job, "running", within_s=LONG_S)
    scheduler.run_until(lambda: "ready" in log_of(job), within_s=LONG_S)
    return job


def outcomes_of(job: Job) -> list[str]:
    return list(job.attempts.order_by("number").values_list("outcome", flat=True))


def test_a_job_that_is_asked_to_leave_saves_its_work_and_runs_again(
    scheduler: Scheduler, ann: User
) -> None:
    job = saving_job(scheduler, ann)

    text = "The owner of the GPU is there."
    assert yield_requests.ask(Yield(job_id=job.pk, code="OwnerPresent", text=text), timezone.now())
    job = scheduler.run_to(job, within_s=REQUEUED_S)

    assert (job.outcome, job.requeues) == ("succeeded", 1)
    assert outcomes_of(job) == ["preempted", "succeeded"]
    assert log_of(job, 2) == "resumed\n"


def test_a_job_that_slurm_preempts_saves_its_work_and_runs_again(
    scheduler: Scheduler, ann: User, ben: User, slurm: Cluster
) -> None:
    jobs = [saving_job(scheduler, ann) for _ in range(2)]

    urgent = submit(ben, "true", Requirement(gpus=2), env={"SBATCH_PARTITION": "urgent"})
    urgent = scheduler.run_to(urgent, within_s=REQUEUED_S)
    scheduler.run_until(
        lambda: any(reloaded(job).state == "finished" for job in jobs), within_s=REQUEUED_S
    )

    assert urgent.outcome == "succeeded"
    preempted = next(job for job in map(reloaded, jobs) if job.state == "finished")
    assert (preempted.outcome, preempted.requeues) == ("succeeded", 1)
    assert outcomes_of(preempted) == ["preempted", "succeeded"]
    assert log_of(preempted, 2) == "resumed\n"


def test_a_job_ends_at_its_time_limit_before_slurm_ends_it(
    scheduler: Scheduler, ann: User, slurm: Cluster
) -> None:
    job = submit(ann, "sleep 600", time_limit=timedelta(seconds=2))

    job = scheduler.run_to(job, within_s=LONG_S)

    assert job.outcome == "timed_out"
    shown = slurm.run("scontrol", "show", "job", attempt_of(job).engine_ref)
    assert "TimeLimit=00:02:00" in shown
    assert "JobState=TIMEOUT" not in shown


def test_the_task_of_another_user_with_the_same_nonce_does_not_count(
    scheduler: Scheduler, slurm: Cluster, ann: User
) -> None:
    """Each user can read the comments of all jobs, and choose that of their own."""
    blocking = [submit(ann, "sleep 600", Requirement(gpus=2)) for _ in range(2)]
    for other in blocking:
        scheduler.run_to(other, "running", within_s=LONG_S)
    job = submit(ann, "echo ran", Requirement(gpus=1))
    scheduler.run_until(lambda: _ref_of(job), within_s=LONG_S)
    ref = _ref_of(job)
    comment = slurm.run("squeue", "-h", "-j", ref, "-o", "%k").strip()
    assert comment.startswith("gpucoord:")
    line = f"gpucoord:x\n{ref}\x1fCOMPLETED\x1fNone\x1f0\x1f\x1f\x1fN/A\x1f{comment}"
    imitations = [
        slurm.run(
            *("sbatch", "--parsable", f"--comment={text}", "--output=/dev/null", "--chdir=/"),
            *("--wrap=sleep 60",),
            uid=ACCOUNTS[SECOND],
        ).strip()
        for text in (comment, line)
    ]
    running = ("squeue", "-h", "-t", "running", "-j", ",".join(imitations), "-o", "%i")
    slurm.wait_for(lambda: len(slurm.run(*running).split()) == 2, LONG_S, "the imitations run")

    began = timezone.now()
    scheduler.run_until(lambda: timezone.now() - began > timedelta(seconds=3), within_s=LONG_S)

    assert _ref_of(job) == ref
    assert "PENDING" in slurm.run("squeue", "-h", "-j", ref, "-o", "%T")
    slurm.run("scancel", *(attempt_of(other).engine_ref for other in blocking))
    assert scheduler.run_to(job, within_s=LONG_S).outcome == "succeeded"


def _ref_of(job: Job) -> str:
    return job.engine_tasks.latest("pk").ref if job.engine_tasks.exists() else ""
