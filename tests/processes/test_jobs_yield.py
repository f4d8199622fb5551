"""Real jobs are asked to leave, through rows, executor and runner, and run again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Event, PolicyValues
from scheduler.dispatch.steps import yields as yield_requests
from scheduler.facts.jobs import Requirement, YieldOptions
from scheduler.facts.plans import Yield
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Attempt, Job, YieldRequest
from scheduler.runner import attempt_files, process_tree
from tests.builders import host, snapshot
from tests.processes.attempts import wait_for
from tests.processes.scheduling import (
    NO_ACCOUNT,
    Scheduler,
    attempt_of,
    folder_of,
    kill_runner_of,
    log_of,
    reloaded,
    submit,
)

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]
SAVES = (
    "if [ -e $GPUCOORD_CHECKPOINT_DIR/step ]; then echo resumed from "
    "$(cat $GPUCOORD_CHECKPOINT_DIR/step); exit 0; fi; echo ready in $GPUCOORD_GRACE_S; "
    "while [ ! -e $GPUCOORD_YIELD_FILE ]; do sleep 0.02; done; "
    "echo 42 > $GPUCOORD_CHECKPOINT_DIR/step; exit 85"
)
OBSTINATE = "trap '' TERM; echo ready; while :; do sleep 0.02; done"


@pytest.fixture
def scheduler(data: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler()
    yield scheduler
    scheduler.close()
    for attempt in Attempt.objects.filter(ended_at=None):
        process_tree.signal_all(process_tree.orphans(0, 0, attempt.nonce), signal.SIGKILL)


def _running(scheduler: Scheduler, owner: User, command: str, **options: Any) -> Job:
    job = scheduler.run_to(submit(owner, command, yield_options=YieldOptions(**options)), "running")
    scheduler.run_until(lambda: "ready" in log_of(job))
    return job


def _ask(job: Job, **changes: Any) -> None:
    yield_request = {"job_id": job.pk, "code": "OwnerPresent", "text": "The owner is there."}
    assert yield_requests.ask(Yield(**(yield_request | changes)), timezone.now())


def test_a_job_saves_its_work_leaves_and_goes_on(scheduler: Scheduler, root: User) -> None:
    job = _running(scheduler, root, SAVES)
    _ask(job)
    job = scheduler.run_to(job)

    assert (job.outcome, job.requeues) == ("succeeded", 1)
    assert log_of(job) == "ready in 10\n"
    assert log_of(job, 2) == "resumed from 42\n"
    kinds = list(Event.objects.order_by("id").values_list("kind", flat=True))
    assert [kind for kind in kinds if kind.startswith("JOB_")] == [
        "JOB_SUBMITTED",
        "JOB_STARTED",
        "JOB_YIELDING",
        "JOB_EVICTED",
        "JOB_REQUEUED",
        "JOB_STARTED",
        "JOB_FINISHED",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")
def test_a_job_of_another_account_reaches_its_folder(scheduler: Scheduler, db: None) -> None:
    job = _running(scheduler, User.objects.create(username=NO_ACCOUNT), SAVES)
    _ask(job)

    assert scheduler.run_to(job).outcome == "succeeded"
    assert (attempt_of(job).account, log_of(job, 2)) == ("nobody", "resumed from 42\n")


def test_a_new_executor_passes_on_what_the_last_one_was_asked(
    scheduler: Scheduler, root: User
) -> None:
    job = _running(scheduler, root, SAVES)
    _ask(job)
    scheduler.restart()

    assert scheduler.run_to(job).outcome == "succeeded"


def test_an_executor_that_dies_between_file_and_signal_loses_nothing(
    scheduler: Scheduler, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _running(scheduler, root, SAVES)
    _ask(job)

    def die(*_: object) -> bool:
        raise SystemExit

    with monkeypatch.context() as dying:
        dying.setattr(attempt_files.process_tree, "signal_one", die)
        with pytest.raises(SystemExit):
            scheduler.step()
    assert (folder_of(job) / attempt_files.REQUEST_FILE).exists()
    assert reloaded(job).state == "running"
    scheduler.restart()

    assert scheduler.run_to(job).outcome == "succeeded"


def test_a_job_that_was_asked_for_nobody_goes_on(scheduler: Scheduler, root: User) -> None:
    goes = "echo ready; while [ ! -e go ]; do sleep 0.02; done; echo went on"
    job = _running(scheduler, root, "cd $GPUCOORD_CHECKPOINT_DIR; " + goes)
    other = submit(root, "true", Requirement(), priority=5)
    _ask(job, for_job=other.pk, deadline=timezone.now() + timedelta(minutes=5))
    scheduler.run_until((folder_of(job).parent / "1.yield").exists)
    job_queue.request_cancel(other.pk, "root", timezone.now())
    scheduler.run_until(lambda: not (folder_of(job).parent / "1.yield").exists())
    (folder_of(job).parent / "checkpoint" / "go").touch()
    job = scheduler.run_to(job)

    assert (job.outcome, log_of(job)) == ("succeeded", "ready\nwent on\n")


def test_a_preemptible_job_whose_machine_restarted_goes_on_from_what_it_saved(
    scheduler: Scheduler, root: User
) -> None:
    job = _running(scheduler, root, SAVES, preemptible=True)
    (folder_of(job).parent / "checkpoint" / "step").write_text("7")
    job.attempts.update(boot_id="of another boot")
    kill_runner_of(job)
    os.kill(attempt_of(job).pid or 0, signal.SIGKILL)
    scheduler.run_until(lambda: job.attempts.count() == 2)

    job = scheduler.run_to(job)
    assert (job.outcome, log_of(job, 2)) == ("succeeded", "resumed from 7\n")


def test_a_job_that_left_while_no_executor_was_there_waits_again(
    scheduler: Scheduler, root: User
) -> None:
    job = _running(scheduler, root, SAVES)
    _ask(job)
    scheduler.step()
    wait_for((folder_of(job) / "result.json").exists)
    scheduler.restart()

    assert scheduler.run_to(job).outcome == "succeeded"
    assert job.attempts.count() == 2


def test_a_runner_that_is_killed_while_its_job_yields_loses_it(
    scheduler: Scheduler, root: User
) -> None:
    job = _running(scheduler, root, "echo ready; sleep 60", requeue=True)
    _ask(job, deadline=timezone.now() + timedelta(minutes=5))
    scheduler.step()
    wait_for((folder_of(job).parent / "1.yield").exists)
    kill_runner_of(job)
    scheduler.run_until(lambda: job.attempts.filter(outcome="lost").exists(), within_s=20)

    assert reloaded(job).state in ("queued", "starting", "running")


def test_an_obstinate_job_is_killed_and_over(scheduler: Scheduler, root: User) -> None:
    job = _running(scheduler, root, OBSTINATE)
    _ask(job, deadline=timezone.now())
    job = scheduler.run_to(job)

    assert (job.outcome, job.signal) == ("preempted", signal.SIGKILL)


def test_an_obstinate_job_runs_anew_if_it_asked_for_that(scheduler: Scheduler, root: User) -> None:
    job = _running(scheduler, root, OBSTINATE, requeue=True)
    _ask(job, deadline=timezone.now())
    scheduler.run_until(lambda: job.attempts.count() == 2)

    assert job.attempts.order_by("number")[0].outcome == "preempted"


def test_a_yielding_job_can_be_cancelled(scheduler: Scheduler, root: User) -> None:
    job = _running(scheduler, root, "trap 'exit 1' TERM; " + OBSTINATE.split("; ", 1)[1])
    _ask(job, deadline=timezone.now() + timedelta(minutes=5))
    scheduler.step()
    assert job_queue.request_cancel(job.pk, "root", timezone.now())
    assert scheduler.run_to(job).outcome == "cancelled"


def test_the_job_reads_why_and_until_when(scheduler: Scheduler, root: User) -> None:
    look = "while [ ! -e $GPUCOORD_YIELD_FILE ]; do sleep 0.02; done; cat $GPUCOORD_YIELD_FILE"
    job = _running(scheduler, root, f"echo ready; {look}")
    _ask(job)
    scheduler.run_to(job)

    body = json.loads(log_of(job).splitlines()[1])
    assert body["reason"] == "The owner is there."
    assert body["deadline"] > timezone.now().timestamp()


def _see_a_gpu() -> str:
    node = settings.CONFIG.node
    latest = snapshot(1, at=timezone.now(), host=host(name=node))
    monitor_store.record(latest)
    return latest.gpus[0].uuid


def test_a_more_important_job_takes_the_gpu_of_one_that_then_goes_on(
    scheduler: Scheduler, root: User
) -> None:
    gpu = _see_a_gpu()
    PolicyValues.objects.create(name="preemption", values={"min_run_minutes": 0.0})
    alone = Requirement(exclusive=True)
    first = submit(root, SAVES, alone, priority=1, yield_options=YieldOptions(preemptible=True))
    scheduler.run_to(first, "running")
    scheduler.run_until(lambda: "ready" in log_of(first))
    urgent = submit(root, "echo urgent", alone, priority=5)
    submit(root, "true", alone, priority=4)
    urgent = scheduler.run_to(urgent)

    assert urgent.outcome == "succeeded"
    assert attempt_of(urgent).gpu_uuids == [gpu]
    request = YieldRequest.objects.get()
    assert (request.attempt.job_id, request.for_job_id) == (first.pk, urgent.pk)
    first = scheduler.run_to(first, within_s=20)
    assert (first.outcome, first.requeues) == ("succeeded", 1)
    assert log_of(first, 2) == "resumed from 42\n"
    kinds = Event.objects.order_by("id").values_list("kind", "job_ref")
    order = [int(job or 0) for kind, job in kinds if kind == "JOB_STARTED"]
    assert order == [first.pk, urgent.pk, urgent.pk + 1, first.pk]
