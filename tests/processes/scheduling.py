"""The scheduler's pass on real jobs and rows, stepped by the test as its loop would."""

from __future__ import annotations

import select
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from monitor.runtime.policy import Guard, Step
from monitor.runtime.rows.wakeups import Listener
from scheduler.dispatch import tasks as scheduler_pass
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Attempt, Job
from scheduler.runner import attempt_files, files
from tests.pace import Stopwatch
from tests.processes.attempts import kill_runners

# No OS account can have this name.
NO_ACCOUNT = "no.account@example"


class Scheduler:
    """`late` lets its clock run ahead."""

    def __init__(self, guard: Guard = transaction.atomic) -> None:
        self.late = timedelta()
        self._listener = Listener("scheduler")
        self._guard = guard
        self._pass = self._open()

    def _open(self) -> Step:
        made = scheduler_pass.build_scheduler(self._guard)
        made.open()
        return made

    def restart(self) -> None:
        """A new one in its place, that knows nothing but rows, files and processes."""
        self._pass.close()
        self._pass = self._open()

    def close(self) -> None:
        self._pass.close()
        self._listener.close()

    def step(self) -> object:
        return self._pass.step(self.now())

    def now(self) -> datetime:
        return timezone.now() + self.late

    def run_until(self, is_so: Callable[[], object], *, within_s: float = 10.0) -> None:
        watch = Stopwatch()
        while not is_so():
            assert not watch.has_run(within_s), f"waited {within_s} s in vain; {list_jobs()}"
            self.step()
            select.select([self._listener], [], [], 0.1)
            self._listener.drain()

    def run_to(self, job: Job, state: str = "finished", *, within_s: float = 10.0) -> Job:
        self.run_until(lambda: reloaded(job).state == state, within_s=within_s)
        return reloaded(job)


def submit(owner: User, command: str, requirement: Requirement | None = None, **more: Any) -> Job:
    """A job without a GPU unless `requirement` says otherwise."""
    request = requirement or Requirement(gpus=0)
    new = NewJob(command=command, requirement=request, **more)
    return job_queue.submit(new, owner, timezone.now())


def reloaded(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def attempt_of(job: Job) -> Attempt:
    attempt = job.attempts.order_by("number").last()
    assert attempt is not None
    return attempt


def folder_of(job: Job, number: int = 1) -> Path:
    return files.attempt_folder(Path(settings.DATA), job.pk, number)


def kill_runner_of(job: Job) -> None:
    """SIGKILL for the runner of its newest attempt and its guardian."""
    attempt = attempt_of(job)
    attempt_state = attempt_files.read_attempt(folder_of(job, attempt.number), attempt.nonce)
    assert attempt_state.started is not None
    kill_runners(attempt_state.started)


def log_of(job: Job, number: int = 1) -> str:
    path = folder_of(job, number) / files.LOG
    return path.read_text() if path.exists() else ""


def list_jobs() -> list[object]:
    return list(Job.objects.values_list("id", "state", "outcome", "problem", "blockers"))
