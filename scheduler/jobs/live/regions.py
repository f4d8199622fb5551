"""The dashboard's region "queue": running and waiting jobs, the same for all viewers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, Count, Exists, F, IntegerField, OuterRef, QuerySet, Value, When

from monitor.pages.live.regions import Context, Region, register
from monitor.runtime.rows.prepared import compiled_once
from scheduler.dispatch.controller.steps import idle_gpus as idle_gpu_step
from scheduler.facts.jobs import JobState
from scheduler.jobs.pages import lines as job_lines
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.pages.lines import JobLine
from scheduler.jobs.timeline import pages as timeline_pages
from scheduler.language_models.prompts import pages as prompt_pages
from scheduler.limits.throttle.pages import badge as mode_badge
from scheduler.limits.throttle.pages.region import REGION
from scheduler.models import BatchItem, Job
from scheduler.submission.batches import live as batch_region

MOST_LINES = 8
WAITING_LAST = Case(
    When(state=JobState.QUEUED.value, then=Value(1)),
    default=Value(0),
    output_field=IntegerField(),
)


PRIORITY_OF_WAITING = Case(
    When(state=JobState.QUEUED.value, then=-F("priority")),
    default=Value(0),
    output_field=IntegerField(),
)
BEGIN = Case(
    When(state=JobState.QUEUED.value, then=F("submitted_at")),
    default=F("started_at"),
)


@dataclass(frozen=True, slots=True)
class Queue:
    """Running jobs, the longest running first, then waiting jobs in queue order.

    `more` jobs have no line, among them the items of batches, which another region shows.
    """

    running: int
    waiting: int
    lines: tuple[JobLine, ...]

    @property
    def more(self) -> int:
        return self.running + self.waiting - len(self.lines)


def in_order(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Running jobs first, then waiting jobs in queue order."""
    return jobs.order_by(WAITING_LAST, "-priority", "submitted_at", "id")


def calm_order(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """The order of the dashboard: a job that starts or ends moves as few lines as possible."""
    begin = BEGIN.asc(nulls_last=True)
    return jobs.order_by(WAITING_LAST, PRIORITY_OF_WAITING, begin, "id")


def load(now: datetime) -> Context:
    counts = dict(_counts())
    waiting = counts.pop(JobState.QUEUED.value, 0)
    running = sum(counts.values())
    first = _first_jobs() if waiting or running else ()
    return {
        "queue": Queue(running, waiting, tuple(job_lines.lines(first))),
        "waiting_jobs": waiting,
        "startable_jobs": len(idle_gpu_step.waiting_jobs()) if waiting else 0,
    }


def _first_jobs() -> QuerySet[Job]:
    is_item = Exists(BatchItem.objects.filter(job=OuterRef("pk")))
    jobs = job_views.filtered(job_views.JobFilter(state="open")).exclude(is_item)
    return calm_order(jobs)[:MOST_LINES]


@compiled_once
def _counts() -> QuerySet[Any, tuple[str, int]]:
    open_jobs = Job.objects.exclude(state=JobState.FINISHED.value)
    return open_jobs.order_by().values_list("state").annotate(Count("id"))


def register_regions() -> None:
    register(mode_badge.REGION)
    register(REGION)
    register(batch_region.REGION)
    register(timeline_pages.REGION)
    register(prompt_pages.REGION)
    register(Region("queue", "scheduler/_queue.html", load, is_right=True))
