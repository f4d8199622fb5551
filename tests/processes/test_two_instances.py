"""Two gpucoord instances on one host, each with rows of its own: they never book a GPU twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from monitor.gpus.rows import snapshot as monitor_store
from scheduler.execution.steps import gpu_closures
from scheduler.execution.steps.specs import ConfinementLimits
from scheduler.facts.jobs import Requirement
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Attempt, Job
from scheduler.runner import process_tree
from scheduler.runner.confine import locks
from scheduler.runner.confine.locks import HeldLocks
from tests.builders import GIB, gpu_uuid, host, snapshot
from tests.processes.attempts import RunningAttempt
from tests.processes.scheduling import Scheduler, reloaded, submit

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]
ALONE = Requirement(gpus=1, exclusive=True)
SHARED = Requirement(gpus=1, memory_bytes=GIB)


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    """Lock files that both instances use; one GPU to share."""
    locks = tmp_path / "locks"
    locks.mkdir()
    settings.LOCK_FOLDER = locks
    return locks


@pytest.fixture
def scheduler(data: Path, folder: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler()
    _see_gpus()
    yield scheduler
    scheduler.close()
    for attempt in Attempt.objects.filter(ended_at=None):
        process_tree.signal_all(process_tree.orphans(0, 0, attempt.nonce), signal.SIGKILL)


def _see_gpus() -> None:
    from django.conf import settings

    here = host(name=settings.CONFIG.node)
    monitor_store.record(snapshot(1, at=timezone.now(), host=here))


def other(run: Any, folder: Path, *, alone: bool) -> RunningAttempt:
    """A job of the other instance, which knows nothing of our rows, on the same GPU."""
    bounds = {"lock_folder": str(folder), "gpus": [0], "alone": alone, "instance": 77}
    made: RunningAttempt = run("/bin/sleep", "60", bounds=bounds)
    return made


def _codes(job: Job) -> list[str]:
    return [blocker["code"] for blocker in reloaded(job).blockers]


@pytest.mark.parametrize("requested", [ALONE, SHARED], ids=["alone", "shared"])
def test_a_gpu_that_another_instance_uses_is_not_booked(
    scheduler: Scheduler, run: Any, folder: Path, root: User, requested: Requirement
) -> None:
    running = other(run, folder, alone=False)
    running.started()

    job = submit(root, "true", requested)
    scheduler.run_until(lambda: _codes(job))

    assert _codes(job) == ["GpuLocked"]
    assert Attempt.objects.count() == 0
    running.stop()
    running.result()
    _see_gpus()
    assert scheduler.run_to(job).outcome == "succeeded"


def test_who_loses_the_race_waits_and_says_for_whom(
    scheduler: Scheduler, run: Any, folder: Path, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan was made when the GPU was free; the lock decides."""
    running = other(run, folder, alone=True)
    running.started()
    monkeypatch.setattr(gpu_closures, "holders_of", lambda *_: {})

    job = submit(root, "true", ALONE)
    scheduler.run_until(lambda: _codes(job))

    attempt = Attempt.objects.get()
    assert (attempt.pid, attempt.outcome) == (None, "")
    assert "gpu0.lock is held by a gpucoord job" in attempt.problem
    assert _codes(job) == ["GpuLocked"]


def test_our_own_shared_jobs_run_side_by_side(scheduler: Scheduler, root: User) -> None:
    jobs = [submit(root, "sleep 60", SHARED) for _ in range(2)]

    for job in jobs:
        scheduler.run_to(job, "running")
    assert set(Job.objects.values_list("state", flat=True)) == {"running"}
    for job in jobs:
        job_queue.request_cancel(job.pk, "root", timezone.now())
        scheduler.run_to(job)


def test_a_gpu_is_unlocked_before_the_end_of_its_job_is_told(
    scheduler: Scheduler, root: User, folder: Path
) -> None:
    scheduler.run_to(submit(root, "true", ALONE))

    locked = locks.lock_gpus(folder, [0], alone=True)
    assert isinstance(locked, HeldLocks)
    locked.release()


def test_a_job_is_given_its_own_gpu_and_others_stay_hidden(
    scheduler: Scheduler, root: User, folder: Path
) -> None:
    monitor_store.record(snapshot(2, at=timezone.now()))
    job = submit(root, "true", ALONE)
    attempt = Attempt(job=job, number=1, gpu_uuids=[gpu_uuid(1)])
    minors = {"0:01:00.0": 4, "0:02:00.0": 5, "0:03:00.0": 6}
    limits_of = ConfinementLimits(host="gpubox", data=folder, lock_folder=folder, minors=minors)

    bounds = limits_of.bounds(attempt)

    assert (bounds.gpus, bounds.alone) == ([1], True)
    assert bounds.hidden == [[195, 4], [195, 6]]
