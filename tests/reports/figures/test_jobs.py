"""Waits of jobs, by class."""

from __future__ import annotations

from typing import Any

from reports.figures.facts import QueueFigures
from reports.figures.policy import jobs
from reports.figures.policy.jobs import JobWait


def wait(job_class: str, seconds: float, **changes: Any) -> JobWait:
    facts: dict[str, Any] = {"owner": "alice", "begin": 0.0, "is_waiting": False} | changes
    return JobWait(job_class=job_class, end=seconds, **facts)


def test_each_class_has_the_waits_of_its_own_jobs() -> None:
    waits = (
        wait("batch", 10, blocker="GpuTaken"),
        wait("batch", 30, blocker="GpuMemory"),
        wait("batch", 25, blocker="GpuTaken", is_waiting=True),
        wait("model", 5),
    )

    assert jobs.queue(waits, ("batch", "model", "shell")) == (
        QueueFigures(job_class="batch", jobs=3, waiting=1, p50_s=25, p90_s=30, blocker="GpuTaken"),
        QueueFigures(job_class="model", jobs=1, waiting=0, p50_s=5, p90_s=5, blocker=""),
        QueueFigures(job_class="shell", jobs=0, waiting=0, p50_s=None, p90_s=None, blocker=""),
    )
