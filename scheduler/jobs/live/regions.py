"""The dashboard's region "queue": running and waiting work, the same for all viewers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    IntegerField,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Value,
    When,
)
from django.urls import reverse
from msgspec import Struct

from monitor.pages.frames import Context, Region, register
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.extensions import is_on, parts
from scheduler.dispatch.steps import controller as idle_gpu_step
from scheduler.facts.jobs import JobState
from scheduler.jobs.lifecycle.rows import relations
from scheduler.jobs.pages import lines as job_lines
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.pages.lines import JobLine
from scheduler.jobs.timeline import pages as timeline_pages
from scheduler.limits.throttle.pages import MODE_REGION, REGION
from scheduler.models import BatchItem, Job

MOST_LINES, OWN_LINES, MOST_GROUPS = 8, 3, 6
# Lines beyond the first ones are looked for among so many jobs.
MOST_LOOKED_AT = 200
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


class Group(Struct, frozen=True):
    """A running batch, or an array with open jobs, as one line. ended: of all its jobs or items.

    ends_at: the expected end; None: unknown. array, batch: its number; None: it is the other.
    """

    url: str
    name: str
    owner: str
    ended: int
    total: int
    failed: int = 0
    ends_at: datetime | None = None
    array: int | None = None
    batch: int | None = None


class Queue(Struct, frozen=True):
    """Running jobs, the longest running first, then waiting jobs in queue order.

    Jobs of `groups` have no lines of their own, nor have running models, which the board names.
    own: further lines, each shown to its owner only.
    """

    running: int
    groups: tuple[Group, ...]
    lines: tuple[JobLine, ...]
    own: tuple[JobLine, ...]


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
    lines, own = _job_lines() if waiting or running else ((), ())
    return {
        "queue": Queue(running, groups(now), lines, own),
        "waiting_jobs": waiting,
        "startable_jobs": len(idle_gpu_step.waiting_jobs()) if waiting else 0,
    }


def _job_lines() -> tuple[tuple[JobLine, ...], tuple[JobLine, ...]]:
    """The first lines, and then those that only their owners see."""
    is_item = Exists(BatchItem.objects.filter(job=OuterRef("pk")))
    runs_model = Q(model_service__isnull=False) & ~Q(state=JobState.QUEUED.value)
    open_jobs = job_views.filtered(job_views.JobFilter(state="open"))
    alone = calm_order(open_jobs.filter(array=None))
    # Other parts of the page show these, unless their extension is off.
    if is_on("batches"):
        alone = alone.exclude(is_item)
    if is_on("models"):
        alone = alone.exclude(runs_model)
    first = list(alone[:MOST_LINES])
    further = _further(alone, first) if len(first) == MOST_LINES else []
    lines = tuple(job_lines.lines([*first, *further]))
    return lines[: len(first)], lines[len(first) :]


def _further(alone: QuerySet[Job], first: Sequence[Job]) -> QuerySet[Job]:
    """The first few of each owner that are not among these."""
    per_owner = Counter(job.owner_id for job in first)
    chosen = []
    for pk, owner in alone[MOST_LINES:MOST_LOOKED_AT].values_list("pk", "owner_id"):
        per_owner[owner] += 1
        if per_owner[owner] <= OWN_LINES:
            chosen.append(pk)
    return calm_order(job_views.jobs().filter(pk__in=chosen))


def groups(now: datetime) -> tuple[Group, ...]:
    """The oldest running batches and arrays with open jobs."""
    batches = (
        Group(
            url=reverse("batch", args=[batch.id]),
            name=batch.name,
            owner=batch.owner,
            ended=batch.completed + batch.failed,
            total=batch.total,
            failed=batch.failed,
            ends_at=batch.eta,
            batch=batch.id,
        )
        for running in parts("scheduler.submission.batches.pages:running")
        for batch in running(now)
    )
    return (*batches, *map(_of_array, _first_of_arrays()))


@compiled_once
def _first_of_arrays() -> QuerySet[Job]:
    """A job of each array that has open jobs."""
    open_jobs = Job.objects.exclude(state=JobState.FINISHED.value).filter(array__isnull=False)
    firsts = open_jobs.order_by().values("array").annotate(first=Min("id")).values("first")
    return Job.objects.filter(pk__in=firsts).select_related("owner").order_by("pk")[:MOST_GROUPS]


def _of_array(job: Job) -> Group:
    array = relations.array_of(job)
    ended = array.size - array.waiting - array.running if array else 0
    return Group(
        url=f"{reverse('jobs')}?q=array+{job.array}",
        name=job.name,
        owner=job.owner.username,
        ended=ended,
        total=array.size if array else 0,
        failed=ended - array.succeeded if array else 0,
        array=job.array,
    )


@compiled_once
def _counts() -> QuerySet[Any, tuple[str, int]]:
    open_jobs = Job.objects.exclude(state=JobState.FINISHED.value)
    return open_jobs.order_by().values_list("state").annotate(Count("id"))


def register_regions() -> None:
    register(MODE_REGION)
    register(REGION)
    register(timeline_pages.REGION)
    register(Region("queue", "scheduler/_queue.html", load, is_right=True))
