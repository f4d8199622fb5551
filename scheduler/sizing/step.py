"""What ended attempts used is recorded, and jobs that declare no GPU memory get a suggestion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from django.contrib.auth.models import User

from monitor.facts.readings import GpuReading, Snapshot
from monitor.runtime.rows.item_isolation import ItemIsolation
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.sizing import rows
from scheduler.sizing.facts import MemorySuggestion

SuitableGpus = Callable[[Requirement], Sequence[GpuReading]]


class AttemptUses:
    """Part of the controller: records what ended attempts used of their GPUs."""

    name = "sizing"

    def __init__(self, host: str) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> list[int]:
        """Returns the jobs whose attempts were recorded."""
        attempts = list(rows.due(self._host, now))
        recorded = self._isolation.each(
            attempts, lambda attempt: f"use of job {attempt.job_id}", rows.record, now
        )
        return [attempt.job_id for attempt, _ in recorded]


def suggestion(new: NewJob, owner: User, suitable: SuitableGpus) -> MemorySuggestion | None:
    """The GPU memory that earlier runs of this command needed, whatever the job declares.

    suitable: the GPUs that could take a request. It is not called without earlier runs.
    """
    requirement = new.requirement
    if requirement.gpus == 0 or not rows.has_samples(owner, new.executed):
        return None
    gpus = suitable(replace(requirement, memory_bytes=None))
    return rows.suggestion(owner, new.executed, gpus)


def sized(new: NewJob, owner: User, suitable: SuitableGpus) -> NewJob:
    """The job with the memory that its earlier runs suggest, if it declares none."""
    requirement = new.requirement
    if requirement.memory_bytes is not None or requirement.exclusive:
        return new
    suggested = suggestion(new, owner, suitable)
    if suggested is None:
        return new
    learned = replace(requirement, memory_bytes=suggested.memory_bytes)
    return replace(new, requirement=learned, memory_is_learned=True)
