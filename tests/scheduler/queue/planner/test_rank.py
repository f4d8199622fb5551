"""Which of several kinds of GPUs a job gets."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import PlanPolicy, Slots
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, gpu_uuid, queued_job, slot

WEAK, STRONG = slot(0, power=330.0, free_bytes=40 * GIB), slot(1, power=2500.0)


def gets(**changes: object) -> str:
    request = Requirement(memory_bytes=20 * GIB)
    job = replace(queued_job(1, requirement=request), **changes)  # type: ignore[arg-type]
    made = plan([job], Slots(host="gpubox", gpus=(WEAK, STRONG)), PlanPolicy(), NOW)
    (placement,) = made.placements
    return placement.gpu_uuids[0]


@pytest.mark.parametrize("priority", [4, 5])
def test_an_important_job_gets_the_strongest_gpu(priority: int) -> None:
    assert gets(priority=priority) == gpu_uuid(1)


def test_a_long_job_gets_the_strongest_gpu() -> None:
    assert gets(time_limit=timedelta(hours=12)) == gpu_uuid(1)


@pytest.mark.parametrize("priority", [1, 2])
def test_background_work_gets_the_weakest_gpu(priority: int) -> None:
    assert gets(priority=priority, time_limit=timedelta(hours=12)) == gpu_uuid(0)


def test_other_jobs_get_the_best_fit() -> None:
    assert gets(time_limit=timedelta(hours=1)) == gpu_uuid(0)
