"""Rows of jobs in any state, as the loop would have left them, and their logs."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User

from scheduler.facts.jobs import AttemptEnding, Identity, NewJob, Outcome
from scheduler.facts.plans import Placement
from scheduler.jobs.rows import changes as job_queue
from scheduler.jobs.rows import transitions
from scheduler.models import Attempt, AttemptUse, Job
from scheduler.queue.planner.sizing import fingerprint
from scheduler.runner import files
from tests.builders import GIB, NOW, gpu_uuid

H100 = "NVIDIA H100 80GB HBM3"


def waiting(owner: User, at: datetime = NOW, **changes: Any) -> Job:
    """A submitted job; it runs `python train.py` unless told otherwise."""
    return job_queue.submit(NewJob(**({"command": "python train.py"} | changes)), owner, at)


def placed(owner: User, on: tuple[int, ...] = (0,), **changes: Any) -> tuple[Job, Attempt]:
    job = waiting(owner, **changes)
    return job, place_again(job, on)


def place_again(
    job: Job, on: tuple[int, ...] = (0,), at: datetime = NOW + timedelta(seconds=1)
) -> Attempt:
    placement = Placement(job_id=job.pk, host="gpubox", gpu_uuids=tuple(map(gpu_uuid, on)))
    attempt = transitions.place(placement, "b007", at)
    assert attempt is not None
    job.refresh_from_db()
    return attempt


def running(owner: User, on: tuple[int, ...] = (0,), **changes: Any) -> Job:
    job = waiting(owner, **changes)
    start(job, tuple(map(gpu_uuid, on)), NOW + timedelta(seconds=1))
    return job


def start(job: Job, gpu_uuids: tuple[str, ...], at: datetime) -> None:
    """Place a waiting job, whose process starts a second later."""
    placement = Placement(job_id=job.pk, host="gpubox", gpu_uuids=gpu_uuids)
    attempt = transitions.place(placement, "b007", at)
    assert attempt is not None
    identity = Identity(
        account="nobody", runner_pid=10, runner_start_ticks=1, pid=11, start_ticks=2,
        started_at=at + timedelta(seconds=1),
    )  # fmt: skip
    assert transitions.record_start(attempt, identity)
    job.refresh_from_db()


def finished(owner: User, outcome: str = "succeeded", **ending: Any) -> Job:
    job = running(owner)
    end(job, outcome, **ending)
    return job


def end(job: Job, outcome: str = "succeeded", **ending: Any) -> None:
    at = NOW + timedelta(minutes=3)
    how = AttemptEnding(**({"outcome": Outcome(outcome), "ended_at": at, "exit_code": 0} | ending))
    assert transitions.record_end(job.attempts.get(ended_at=None), how, at)
    job.refresh_from_db()


def write_log(data: Path, job: Job, text: bytes, number: int = 1) -> Path:
    path = files.log_path(data, job.pk, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        log.write(text)
    return path


def past_runs(
    owner: User, count: int, model: str = "NVIDIA H100 80GB HBM3", peak: int = 10 * GIB
) -> None:
    """`count` successful runs of `python train.py`."""
    for number in range(count):
        job = running(owner)
        attempt = Attempt.objects.get(job=job)
        end(job)
        AttemptUse.objects.create(
            attempt=attempt, fingerprint=fingerprint(owner.pk, job.argv), gpu_model=model,
            is_sample=True, gpu_s=60, peak_memory_bytes=peak + number,
        )  # fmt: skip
