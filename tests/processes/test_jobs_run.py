from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from msgspec.structs import replace

from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Claim, Event, HostSample
from monitor.runtime.rows.leases import LeaseLost
from scheduler.facts.jobs import Requirement
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Attempt, Job
from scheduler.runner import accounts, attempt_files, files, process_tree
from tests.builders import GIB, gpu_uuid, host, snapshot
from tests.processes.attempts import is_running, wait_for
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


@pytest.fixture
def scheduler(data: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler()
    yield scheduler
    scheduler.close()
    for attempt in Attempt.objects.filter(ended_at=None):
        process_tree.signal_all(process_tree.orphans(0, 0, attempt.nonce), signal.SIGKILL)


def _see_gpus(count: int = 2, **changes: object) -> None:
    here = host(name=_node())
    monitor_store.record(snapshot(count, at=timezone.now(), host=here, **changes))


def _node() -> str:
    from django.conf import settings

    return str(settings.CONFIG.node)


def test_a_job_runs_and_ends(scheduler: Scheduler, root: User) -> None:
    job = scheduler.run_to(submit(root, "echo hello; exit 3"))

    assert (job.outcome, job.exit_code, job.problem) == ("failed", 3, "")
    assert log_of(job) == "hello\n"
    assert job.started_at is not None
    assert job.ended_at is not None
    assert job.submitted_at < job.started_at < job.ended_at
    attempt = attempt_of(job)
    assert (attempt.outcome, attempt.log_bytes, attempt.account) == ("failed", 6, "root")
    assert attempt.cpu_s is not None
    kinds = list(Event.objects.order_by("id").values_list("kind", flat=True))
    assert kinds == ["JOB_SUBMITTED", "JOB_STARTED", "JOB_FINISHED"]


def test_a_running_job_is_known_as_such(scheduler: Scheduler, root: User) -> None:
    job = scheduler.run_to(submit(root, "sleep 60"), "running")

    attempt = attempt_of(job)
    assert attempt.pid is not None
    assert os.getsid(attempt.pid) == attempt.pid
    job_queue.request_cancel(job.pk, "root", timezone.now())
    scheduler.run_to(job)


def test_a_job_gets_its_gpus_and_holds_them_while_it_runs(scheduler: Scheduler, root: User) -> None:
    _see_gpus(2)
    request = Requirement(gpus=2, memory_bytes=20 * GIB)
    job = submit(root, "echo $CUDA_VISIBLE_DEVICES; sleep 60", request)
    scheduler.run_until(lambda: log_of(job))
    scheduler.run_to(job, "running")

    assert log_of(job) == f"{gpu_uuid(0)},{gpu_uuid(1)}\n"
    claims = monitor_store.open_claims(_node())
    assert [c.memory_bytes for c in claims] == [20 * GIB, 20 * GIB]
    assert {c.leader_pid for c in claims} == {attempt_of(job).pid}
    # Once it has ended, they are free again.
    job_queue.request_cancel(job.pk, "root", timezone.now())
    scheduler.run_to(job)
    assert not Claim.objects.filter(until_at=None).exists()


def test_a_second_exclusive_job_waits_for_the_first(scheduler: Scheduler, root: User) -> None:
    _see_gpus(1)
    first = submit(root, "sleep 60", Requirement(exclusive=True))
    second = submit(root, "true", Requirement(exclusive=True))
    scheduler.run_to(first, "running")

    assert reloaded(second).blockers[0]["code"] == "GpuTaken"
    job_queue.request_cancel(first.pk, "root", timezone.now())
    assert scheduler.run_to(second).outcome == "succeeded"


def test_no_gpu_job_starts_on_an_old_reading(scheduler: Scheduler, root: User) -> None:
    here = host(name=_node())
    monitor_store.record(snapshot(1, at=timezone.now() - timedelta(minutes=1), host=here))
    job = submit(root, "true", Requirement(gpus=1))
    scheduler.step()

    assert reloaded(job).blockers[0]["code"] == "StaleReading"


def test_a_reason_is_written_only_when_it_changes(scheduler: Scheduler, root: User) -> None:
    job = submit(root, "true", Requirement(gpus=1))
    scheduler.step()
    Job.objects.filter(pk=job.pk).update(blockers=[{"code": "Touched"}])
    scheduler.step()

    assert reloaded(job).blockers == [{"code": "Touched"}]


def test_a_waiting_job_is_cancelled_at_once(scheduler: Scheduler, root: User) -> None:
    job = submit(root, "true")

    assert job_queue.request_cancel(job.pk, "root", timezone.now())
    scheduler.step()
    assert (reloaded(job).state, reloaded(job).outcome) == ("finished", "cancelled")
    assert not job.attempts.exists()


def test_a_starting_job_is_cancelled(scheduler: Scheduler, root: User) -> None:
    job = submit(root, "sleep 60")
    scheduler.step()

    assert job_queue.request_cancel(job.pk, "root", timezone.now())
    assert reloaded(job).state == "stopping"
    assert scheduler.run_to(job).outcome == "cancelled"


def test_a_running_job_is_cancelled_with_all_its_processes(
    scheduler: Scheduler, root: User
) -> None:
    job = submit(root, "sleep 60 & echo $!; wait")
    scheduler.run_until(lambda: log_of(job))
    scheduler.run_to(job, "running")

    assert job_queue.request_cancel(job.pk, "root", timezone.now())
    assert not job_queue.request_cancel(job.pk, "root", timezone.now())
    ended = scheduler.run_to(job)
    assert (ended.outcome, ended.signal, ended.cancelled_by) == ("cancelled", 15, "root")
    assert not is_running(int(log_of(job)))


def test_a_job_that_ends_before_it_can_be_cancelled_keeps_its_outcome(
    scheduler: Scheduler, root: User, tmp_path: Path
) -> None:
    command = f"while [ ! -e {tmp_path}/end ]; do sleep 0.02; done"
    job = scheduler.run_to(submit(root, command), "running")
    (tmp_path / "end").touch()
    wait_for((folder_of(job) / files.RESULT).exists)

    job_queue.request_cancel(job.pk, "root", timezone.now())
    assert scheduler.run_to(job).outcome == "succeeded"


def test_a_time_limit_is_kept(scheduler: Scheduler, root: User) -> None:
    job = scheduler.run_to(submit(root, "sleep 60", time_limit=timedelta(seconds=1)))

    assert (job.outcome, job.problem) == ("timed_out", "The job ran into its time limit.")


def test_a_command_that_is_not_there_says_so(scheduler: Scheduler, root: User) -> None:
    job = scheduler.run_to(submit(root, "", argv=("trainn", "x")))

    assert (job.outcome, job.exit_code) == ("failed", 127)
    assert "Command not found: trainn" in job.problem


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")
def test_users_without_an_account_share_nobody_when_the_setting_says_so(
    scheduler: Scheduler, db: None
) -> None:
    job = scheduler.run_to(submit(User.objects.create(username=NO_ACCOUNT), "id -un; pwd"))

    assert log_of(job) == "nobody\n/tmp\n"
    assert attempt_of(job).account == "nobody"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")
def test_a_job_whose_owner_lost_their_account_fails_and_never_runs(
    data: Path, settings: Any, db: None
) -> None:
    settings.CONFIG = replace(settings.CONFIG, run_as="auto")
    scheduler = Scheduler()
    try:
        job = scheduler.run_to(submit(User.objects.create(username=NO_ACCOUNT), "id"))
    finally:
        scheduler.close()

    assert (job.outcome, job.started_at, log_of(job)) == ("failed", None, "")
    assert "has no OS account" in job.problem


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")
def test_a_job_starts_when_the_directory_of_its_account_is_back(
    data: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, db: None
) -> None:
    answers = {"away": -1}
    monkeypatch.setattr(accounts, "directories", lambda: ["away"])
    monkeypatch.setattr(accounts, "status", lambda service, _: answers[service])
    settings.CONFIG = replace(settings.CONFIG, run_as="auto")
    scheduler = Scheduler()
    try:
        job = submit(User.objects.create(username=NO_ACCOUNT), "id -u")
        scheduler.run_until(lambda: reloaded(job).retry_at is not None)
        waiting = reloaded(job)
        lookup, known = pwd.getpwnam, pwd.getpwnam("nobody")
        person = pwd.struct_passwd((NO_ACCOUNT, "x", 54321, known.pw_gid, "", "/tmp", "/bin/sh"))
        monkeypatch.setattr(
            pwd, "getpwnam", lambda name: person if name == NO_ACCOUNT else lookup(name)
        )
        scheduler.late = timedelta(seconds=11)
        job = scheduler.run_to(job)
    finally:
        scheduler.close()

    assert (waiting.state, waiting.started_at) == ("queued", None)
    assert (job.outcome, attempt_of(job).number) == ("succeeded", 2)
    assert log_of(job, 2) == "54321\n"


def test_the_higher_priority_starts_first(scheduler: Scheduler, root: User) -> None:
    low = [submit(root, "true", priority=1) for _ in range(4)]
    high = submit(root, "true", priority=5)
    scheduler.run_until(lambda: all(reloaded(job).state == "finished" for job in (*low, high)))

    placed = Attempt.objects.order_by("placed_at", "id").values_list("job_id", flat=True)
    assert placed[0] == high.pk


def test_a_running_job_is_adopted_after_a_restart(scheduler: Scheduler, root: User) -> None:
    job = submit(root, "echo began; sleep 0.5; exit 9")
    scheduler.run_until(lambda: log_of(job))
    scheduler.restart()

    ended = scheduler.run_to(job)
    assert (ended.outcome, ended.exit_code, log_of(job)) == ("failed", 9, "began\n")
    assert job.attempts.count() == 1


def test_a_result_that_nobody_saw_is_found(scheduler: Scheduler, root: User) -> None:
    job = submit(root, "exit 9")
    scheduler.step()
    wait_for((folder_of(job) / files.RESULT).exists)
    scheduler.restart()

    scheduler.step()
    assert (reloaded(job).state, reloaded(job).exit_code) == ("finished", 9)


def test_a_placed_job_is_started_by_the_next_executor(
    scheduler: Scheduler, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(root, "echo once")
    monkeypatch.setattr("scheduler.runner.launch.RunnerStarter.spawn", lambda *_: True)
    scheduler.step()
    monkeypatch.undo()
    scheduler.restart()

    assert scheduler.run_to(job).outcome == "succeeded"
    assert log_of(job) == "once\n"
    assert job.attempts.count() == 1


def test_a_job_that_no_runner_takes_up_waits_again(
    scheduler: Scheduler, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(root, "echo once")
    monkeypatch.setattr("scheduler.runner.launch.RunnerStarter.spawn", lambda *_: True)
    scheduler.step()
    scheduler.late = timedelta(seconds=31)
    monkeypatch.undo()
    scheduler.step()

    # A runner that comes too late finds the first attempt given up.
    scheduler.run_to(job)
    assert log_of(job, 1) == ""
    assert log_of(job, 2) == "once\n"
    assert [a.outcome for a in job.attempts.order_by("number")] == ["", "succeeded"]


def test_a_runner_that_dies_before_it_starts_the_job_costs_nothing(
    scheduler: Scheduler, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(root, "echo once")
    monkeypatch.setattr("scheduler.runner.launch.RunnerStarter.spawn", lambda *_: True)
    scheduler.step()
    nonce = attempt_of(job).nonce
    dead = attempt_files.own_claim(nonce, runner=True).to_json() | {"start_ticks": 1}
    assert files.claim(folder_of(job), dead)
    monkeypatch.undo()

    assert scheduler.run_to(job).outcome == "succeeded"
    assert log_of(job, 2) == "once\n"


def test_a_job_whose_runner_is_killed_is_lost_and_ended(scheduler: Scheduler, root: User) -> None:
    job = submit(root, "setsid sleep 60 & sleep 61 & echo $! $!; wait")
    scheduler.run_until(lambda: log_of(job))
    scheduler.run_to(job, "running")
    attempt = attempt_of(job)
    kill_runner_of(job)
    wait_for(lambda: not is_running(attempt.runner_pid or 0))

    ended = scheduler.run_to(job)
    assert (ended.outcome, ended.exit_code) == ("lost", None)
    assert "guardian were killed" in ended.problem
    assert process_tree.orphans(attempt.pid or 0, attempt.start_ticks or 0, attempt.nonce) == []


def test_a_job_whose_runner_is_killed_goes_on_under_its_guardian(
    scheduler: Scheduler, root: User
) -> None:
    job = submit(root, "echo began; while [ ! -e go ]; do sleep 0.05; done; exit 5", cwd="/tmp")
    job.cwd = str(folder_of(job).parent)
    job.save()
    scheduler.run_until(lambda: log_of(job))
    scheduler.run_to(job, "running")
    first = attempt_of(job)
    os.kill(first.runner_pid or 0, signal.SIGKILL)
    scheduler.run_until(lambda: attempt_of(job).runner_pid != first.runner_pid)
    (folder_of(job).parent / "go").touch()

    ended = scheduler.run_to(job)
    assert (ended.outcome, ended.exit_code, job.attempts.count()) == ("failed", 5, 1)
    assert Event.objects.filter(kind="JOB_RUNNER_REPLACED").count() == 1


def test_what_a_killed_runner_leaves_is_killed_when_it_does_not_obey(
    scheduler: Scheduler, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(root, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    scheduler.run_until(lambda: log_of(job))
    scheduler.run_to(job, "running")
    attempt = attempt_of(job)
    kill_runner_of(job)
    scheduler.run_to(job, "stopping")

    assert is_running(attempt.pid or 0)
    scheduler.late = timedelta(seconds=11)
    assert scheduler.run_to(job).outcome == "lost"
    assert not is_running(attempt.pid or 0)


def test_a_job_of_before_a_reboot_is_lost(scheduler: Scheduler, root: User) -> None:
    job = scheduler.run_to(submit(root, "sleep 60"), "running")
    Attempt.objects.filter(job=job).update(boot_id="an-older-boot")
    scheduler.step()

    assert reloaded(job).outcome == "lost"
    assert "restarted" in reloaded(job).problem
    process_tree.signal_all(process_tree.orphans(0, 0, attempt_of(job).nonce), signal.SIGKILL)


def test_a_job_killed_with_the_service_ended_when_it_was_last_seen(
    scheduler: Scheduler, root: User
) -> None:
    job = scheduler.run_to(submit(root, "sleep 60"), "running")
    attempt = attempt_of(job)
    kill_runner_of(job)
    process_tree.signal_all(process_tree.orphans(0, 0, attempt.nonce), signal.SIGKILL)
    wait_for(lambda: not is_running(attempt.pid or 0))
    read_at = int(time.time()) + 1
    HostSample.objects.create(host=attempt.host, t=read_at)
    scheduler.late = timedelta(hours=8)

    ended = scheduler.run_to(job)
    assert ended.outcome == "lost"
    assert ended.ended_at == datetime.fromtimestamp(read_at + 1, UTC)


def test_nothing_starts_when_the_lease_is_lost(data: Path, root: User) -> None:
    def lost() -> object:
        raise LeaseLost("scheduler")

    job = submit(root, "true")
    scheduler = Scheduler(lost)  # type: ignore[arg-type]
    with pytest.raises(LeaseLost):
        scheduler.step()
    scheduler.close()

    assert reloaded(job).state == "queued"
    assert not (data / "jobs").exists()
