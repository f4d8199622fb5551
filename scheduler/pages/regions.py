"""The dashboard's region "queue": what runs and what waits, the same for all viewers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Case, Count, IntegerField, QuerySet, Value, When

from monitor.pages.regions import Context, Region, register
from scheduler import viewing
from scheduler.jobs import JobState
from scheduler.models import Job
from scheduler.pages import job_lines, mode_badge
from scheduler.pages.job_lines import JobLine
from scheduler.pages.pressure_region import REGION

MOST_LINES = 8
WAITING_LAST = Case(
    When(state=JobState.QUEUED.value, then=Value(1)),
    default=Value(0),
    output_field=IntegerField(),
)


@dataclass(frozen=True, slots=True)
class Queue:
    """`lines`: what runs first, then what waits in its order; `more` are not among them."""

    running: int
    waiting: int
    lines: tuple[JobLine, ...]

    @property
    def more(self) -> int:
        return self.running + self.waiting - len(self.lines)


def in_order(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """What runs first, then what waits, in the order of the queue."""
    return jobs.order_by(WAITING_LAST, "-priority", "submitted_at", "id")


def load(now: datetime) -> Context:
    open_jobs = Job.objects.exclude(state=JobState.FINISHED.value)
    counts = dict(open_jobs.order_by().values_list("state").annotate(Count("id")))
    waiting = counts.pop(JobState.QUEUED.value, 0)
    running = sum(counts.values())
    shown = in_order(viewing.filtered("open", ""))[:MOST_LINES] if waiting or running else ()
    return {"queue": Queue(running, waiting, tuple(job_lines.lines(shown)))}


def register_regions() -> None:
    register(mode_badge.REGION)
    register(REGION)
    register(Region("queue", "scheduler/_queue.html", load))
